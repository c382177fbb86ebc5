"""KV between simulated pods: connectors' wire shapes, leases, the side channel that replaces RDMA."""
