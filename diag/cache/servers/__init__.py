"""What stands behind an address: one server, a cluster, a Sentinel service; connections and credentials."""
