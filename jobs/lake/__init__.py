"""Spark, Delta and settings: the only place that reads or writes."""
