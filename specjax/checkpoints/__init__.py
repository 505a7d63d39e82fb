"""Networks, draft heads and small trained parts on disk: reading and writing."""
