echo built without a Dockerfile
exec sleep 3600
