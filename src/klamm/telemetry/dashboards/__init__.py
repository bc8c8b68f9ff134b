"""Files for the monitoring of a cluster: `grafana.json`, a dashboard, and `alerts.yml`, alert rules for Prometheus."""
