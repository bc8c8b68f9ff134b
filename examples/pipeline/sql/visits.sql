-- A session window: clicks of a visitor are one visit until half a minute passes without one.

CREATE STREAM clicks (visitor STRING NOT NULL, page STRING, at TIMESTAMP NOT NULL)
  WITH (key = 'visitor', timestamp = 'at', watermark = '10 seconds', partitions = 2);

-- A visit is told once, when the watermark has passed its end.
CREATE STREAM visits WITH (key = 'visitor', partitions = 2) AS
  SELECT
    visitor,
    session_window.start AS began,
    session_window.end AS ended,
    count(*) AS clicks,
    array_sort(collect_set(page)) AS pages
  FROM clicks
  GROUP BY visitor, session_window(at, '30 seconds');
