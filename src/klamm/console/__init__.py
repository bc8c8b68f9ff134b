"""The web console: topics, records, groups, brokers and the rest of any cluster that speaks Kafka's protocol.

A client of clusters and nothing else: it keeps no state that a cluster has, except 24 hours of samples for its charts.

    core/            pure: samples, tables, rows, attention, records as text, plans, charts, roles
    clusters         the clusters of a console; one link each, with its clients and its last sample
    collector        reads every cluster again and again, in a thread of its own
    history          24 hours of samples in SQLite
    message_reader   reads, searches and follows records
    schema_client    schemas of a registry
    record_decoder   records with a schema as JSON
    pipelines        pipelines of this machine and of the cluster's records
    dead_letters     what a pipeline could not read; redrive
    group_details    members, offsets and lag in seconds of one group
    group_positions  the requests of each type of group: consumers, share, streams
    hanging_transactions  transactions that are open in a partition and at no coordinator
    insync_minimums  min.insync.replicas of topics, for the check of restarts
    unread_times     the timestamps of unread records, for lag in seconds
    settings         the console's file: users, roles, masks, audit
    login/           users, sessions, tokens of forms
    audit            every change, in a topic and in the log
    app/             the pages: routes, templates, static files
    service          what starts and stops with the server
"""
