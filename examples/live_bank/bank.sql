-- The pipeline of `make demo`. Each result is a topic (the lake: a folder of Parquet files), and each is exactly once.

SET name = 'bank';
SET partitions = 2;
SET trigger = '1 second';
SET registry = 'http://127.0.0.1:8081';  -- the demo runs one on a free port, and names that instead

-- Avro (transaction.avsc), keyed by account. What is no such record goes to transactions.dead_letters as it came.
CREATE STREAM transactions (
  id      BIGINT NOT NULL,
  account STRING NOT NULL,
  kind    STRING,
  amount  DECIMAL(12, 2) NOT NULL,
  at      TIMESTAMP NOT NULL
) WITH (format = 'avro', key = 'account', timestamp = 'at', watermark = '2 hours');

-- The newest balance of each account.
CREATE TABLE balances AS
  SELECT account, sum(amount) AS balance, count(*) AS transactions
  FROM transactions GROUP BY account;

-- What each account pays in each minute.
CREATE TABLE spend_per_minute WITH (key = 'account, minute') AS
  SELECT account, window.start AS minute, sum(-amount) AS spent
  FROM transactions WHERE amount < 0
  GROUP BY account, window(at, '1 minute');

-- Large payments, as they happen.
CREATE STREAM suspicious WITH (key = 'account') AS
  SELECT * FROM transactions WHERE amount <= -900;

-- The audit trail: every good transaction, for ever. Fewer and larger files than one a second.
CREATE SINK audit WITH (format = 'parquet', path = 'lake/transactions', trigger = '3 seconds') AS
  SELECT * FROM transactions;
