-- The audit trail of a bank in a lake, three times: as files, as a Delta table and as an Iceberg table, each row once.
--
--   pip install 'klamm[spark,lake]'
--   klamm pipeline run audit.sql --once          loads what is there now; cron runs it every hour
--   klamm pipeline compact audit.sql             merges the small files of many loads
--   klamm pipeline backfill audit.sql delta --from 7d --to 6d --replace

SET name = 'audit';

CREATE STREAM payments (account STRING, amount DECIMAL(12, 2), at TIMESTAMP METADATA FROM 'timestamp')
  WITH (topic = 'payments', bad_records = 'drop');

CREATE VIEW trail AS SELECT account, amount, at, to_date(at) AS day FROM payments;

CREATE SINK files WITH (format = 'parquet', path = 'lake/files', partition_by = 'day') AS SELECT * FROM trail;

CREATE SINK delta WITH (format = 'delta', path = 'lake/delta', partition_by = 'day') AS SELECT * FROM trail;

CREATE SINK iceberg WITH (format = 'iceberg', path = 'lake/warehouse', table = 'bank.audit', partition_by = 'day')
  AS SELECT * FROM trail;
