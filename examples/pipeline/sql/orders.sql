-- Orders and their payments, joined within an hour; visits as sessions; orders that came twice counted once.

CREATE STREAM orders (id BIGINT, customer STRING, at TIMESTAMP)
  WITH (key = 'customer', timestamp = 'at', watermark = '1 minute', deduplicate = 'id', partitions = 2);

CREATE STREAM payments (order_id BIGINT, paid DOUBLE, paid_at TIMESTAMP)
  WITH (timestamp = 'paid_at', watermark = '1 minute', partitions = 2);

CREATE STREAM paid_orders WITH (key = 'id') AS
  SELECT o.id, o.customer, p.paid
  FROM orders o JOIN payments p
    ON o.id = p.order_id AND p.paid_at BETWEEN o.at AND o.at + INTERVAL 1 HOUR;

CREATE TABLE visits WITH (topic = 'customer_visits', key = 'customer, started') AS
  SELECT customer, session_window.start AS started, count(*) AS orders
  FROM orders GROUP BY customer, session_window(at, '5 minutes');
