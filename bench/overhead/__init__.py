"""What the gateway costs beside nginx and the Rust routers: same mock pods, same load, one run, CPU from the kernel."""
