"""The messages themselves, one file per API family, named as Kafka names them.

Parts keep Kafka's names too. Where a request and its response have different parts of one name, the response's ends
in `Response`; where the parts are the same, they share one class. A tagged struct that is not there is None.
"""
