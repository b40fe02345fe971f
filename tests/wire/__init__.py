"""One server with a fake engine, its clients, and the cluster, over real sockets."""
