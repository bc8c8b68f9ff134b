-- A shop's database into topics, its orders counted, with schemas in a registry.
--
--     export SHOP_DB=jdbc:postgresql://localhost/shop SHOP_PASSWORD=...
--     klamm pipeline run examples/pipeline/sql/shop.sql --set spark.jars.packages=org.postgresql:postgresql:42.7.4
--
-- New rows are those with a larger id. The table needs an index on it, and rows that are inserted but not committed yet
-- are waited for: five seconds here.

SET registry = 'http://localhost:8081';
SET partitions = 2;

CREATE SOURCE orders (id BIGINT, customer STRING, item STRING, cents BIGINT, ordered TIMESTAMP) WITH (
  connector = 'jdbc', driver = 'org.postgresql.Driver',
  url = '${SHOP_DB}', user = 'shop', password = '${SHOP_PASSWORD}',
  table = 'orders', cursor = 'id', delay = '5 seconds', batch_size = 5000, fetch_size = 1000,
  topic = 'shop_orders', key = 'customer', format = 'avro');

-- What changed, by the time it changed: a row that changes again comes again.
CREATE SOURCE customers (id STRING, name STRING, changed TIMESTAMP) WITH (
  connector = 'jdbc', driver = 'org.postgresql.Driver',
  url = '${SHOP_DB}', user = 'shop', password = '${SHOP_PASSWORD}',
  query = 'SELECT id, name, changed FROM customers WHERE NOT hidden', cursor = 'changed', delay = '5 seconds',
  topic = 'shop_customers', key = 'id', format = 'json_schema');

CREATE TABLE spent WITH (topic = 'shop_spent', format = 'protobuf') AS
  SELECT customer, sum(cents) AS cents, count(*) AS orders, max(ordered) AS newest FROM orders GROUP BY customer;
