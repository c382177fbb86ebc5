"""Values of one request that all front ends and features share: attempts and their results, the outcome, rejections."""
