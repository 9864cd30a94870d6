"""The home of the audit: PySpark over a broker's journal. It is not built yet; nothing is here."""
