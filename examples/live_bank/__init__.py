"""The bank of `make demo`: everything runs at once, and at the end the books are checked.

rules        what a transaction is, and what follows from a list of them: plain Python, no clients
generator    customers who deposit, pay and sometimes send nonsense
services     the account service and the logging service: two groups, each sees every transaction
bank.sql     the pipeline: balances, spend per minute, suspicious transactions, dead letters, a lake
transaction.avsc   the schema of a transaction, in a registry
processes    the node, the registry and the pipeline, as child processes
watch, lake  what there is to see of them: results, lag, files
dashboard    the picture of that, for a terminal
check        the books, computed again from the raw topic and compared
steps, app   what is said on the way; the order of events
"""
