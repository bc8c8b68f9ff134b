-- The word count: lines of text in, a table of counts out.

CREATE STREAM lines (line STRING) WITH (format = 'string', partitions = 2);

CREATE TABLE counts AS
  SELECT word, count(*) AS n
  FROM (SELECT explode(split(lower(line), '[^a-z]+')) AS word FROM lines)
  WHERE word <> ''
  GROUP BY word;
