"""The messages themselves, one file per API family, named as Kafka names them."""
