-- A bank: balances as a table, spend per minute in windows, suspicious payments as a stream.
--
--     klamm up &
--     klamm pipeline check examples/pipeline/sql/bank.sql
--     klamm pipeline run examples/pipeline/sql/bank.sql --once
--     klamm consume balances

SET name = 'bank';
SET partitions = 2;

CREATE STREAM payments (
  account STRING NOT NULL,
  amount  DECIMAL(12, 2) NOT NULL,
  at      TIMESTAMP
) WITH (topic = 'payments', partitions = 2, key = 'account', timestamp = 'at', watermark = '10 seconds');

CREATE TABLE customers (id STRING, owner STRING) WITH (topic = 'customers', partitions = 2, key = 'id');

-- The newest sum of each account; an account that is even again is deleted.
CREATE TABLE balances WITH (delete_when = 'balance = 0') AS
  SELECT account, sum(amount) AS balance FROM payments GROUP BY account;

CREATE TABLE spend_per_minute WITH (key = 'account, minute') AS
  SELECT account, window.start AS minute, sum(amount) AS spent, count(*) AS payments
  FROM payments WHERE amount > 0
  GROUP BY account, window(at, '1 minute');

-- With the owner as it is known when the payment is read.
CREATE STREAM suspicious WITH (key = 'account') AS
  SELECT p.account, p.amount, p.at, c.owner
  FROM payments p LEFT JOIN customers c ON p.account = c.id
  WHERE p.amount > 900;

-- A table of tables: computed anew when one of them changes, and only the difference is written.
CREATE TABLE wealth AS
  SELECT c.owner, sum(b.balance) AS wealth
  FROM balances b JOIN customers c ON b.account = c.id
  GROUP BY c.owner;
