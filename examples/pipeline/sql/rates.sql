-- Payments at the exchange rate of their time: the table is read as it was when each payment was made.
--
--     klamm pipeline run examples/pipeline/sql/rates.sql
--
-- A payment that comes late still finds the rate of its own time, as long as the rate's record is in the topic.
-- Compaction removes old ones; this keeps them for a week:
--
--     klamm topic alter rates --config min.compaction.lag.ms=604800000

CREATE FUNCTION proper RETURNS STRING AS 'string:capwords';

CREATE TABLE rates (currency STRING, rate DOUBLE)
  WITH (key = 'currency', partitions = 2);

CREATE STREAM payments (id INT, currency STRING, amount DOUBLE, payer STRING, at TIMESTAMP)
  WITH (timestamp = 'at', partitions = 2);

CREATE STREAM paid WITH (key = 'id') AS
  SELECT p.id, proper(p.payer) AS payer, p.amount * r.rate AS value, r.rate
  FROM payments p LEFT JOIN rates FOR SYSTEM_TIME AS OF p.at AS r ON p.currency = r.currency;
