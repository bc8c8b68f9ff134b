"""The broker settings of Kafka 4.3, one file per family; `klamm.model.broker_configs` joins them."""
