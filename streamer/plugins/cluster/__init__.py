"""Many machines behind one address: gateways that clients talk to, workers that transcribe, NATS between them."""
