-- Orders joined with customers: a stream with a table as it is when the order comes, and a table with a table.

CREATE STREAM orders (id BIGINT NOT NULL, customer STRING, cents BIGINT)
  WITH (key = 'customer', partitions = 2);

CREATE TABLE customers (id STRING, name STRING, city STRING)
  WITH (key = 'id', partitions = 2);

-- An order keeps the name its customer had; an order of an unknown customer has none.
CREATE STREAM named_orders WITH (key = 'id', partitions = 2) AS
  SELECT o.id, o.cents, c.name, c.city
  FROM orders o LEFT JOIN customers c ON o.customer = c.id;

CREATE TABLE spent WITH (partitions = 2) AS
  SELECT customer, sum(cents) AS cents FROM orders GROUP BY customer;

-- A customer who moves takes all orders along, and one who is deleted takes them out.
CREATE TABLE cities WITH (partitions = 2) AS
  SELECT c.city, sum(s.cents) AS cents, count(*) AS customers
  FROM spent s JOIN customers c ON s.customer = c.id
  GROUP BY c.city;
