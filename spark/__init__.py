"""The data pipeline: the journal as a Spark source, and the audit that proves what happened.

``spark.read.format("fairlead")`` works after :func:`spark.session.build`, or after
``session.dataSource.register(FairleadSource)``. Nothing here is imported by the broker or by its
clients, and nothing here runs without the extra ``fairlead[spark]``.
"""
