-- Aggregate a stream and subscribe to the result: the newest state of each sensor, and what it measured per minute.
--
--     klamm up &
--     klamm pipeline run examples/pipeline/sql/readings.sql &
--     echo '{"sensor": "roof", "celsius": 21.5, "at": "2026-01-01T12:00:00Z"}' | klamm produce readings
--     klamm consume sensors

CREATE STREAM readings (sensor STRING NOT NULL, celsius DOUBLE NOT NULL, at TIMESTAMP NOT NULL)
  WITH (key = 'sensor', timestamp = 'at', watermark = '30 seconds', partitions = 2);

-- A table is the newest row of each key: consumers get a record whenever a sensor's row changes.
CREATE TABLE sensors WITH (partitions = 2) AS
  SELECT sensor, count(*) AS readings, max_by(celsius, at) AS celsius, max(celsius) AS warmest
  FROM readings
  GROUP BY sensor;

-- A windowed table has a row for each key and window; it changes while the window is open.
CREATE TABLE per_minute WITH (key = 'sensor, minute', partitions = 2) AS
  SELECT sensor, window.start AS minute, count(*) AS readings, round(avg(celsius), 1) AS mean
  FROM readings
  GROUP BY sensor, window(at, '1 minute');

-- The same once for each window, when it has closed: rows that come later than the watermark are left out.
CREATE STREAM reports WITH (key = 'sensor', partitions = 2) AS
  SELECT sensor, window.end AS until, round(avg(celsius), 1) AS mean
  FROM readings
  GROUP BY sensor, window(at, '1 minute');
