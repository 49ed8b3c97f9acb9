cat /greeting
exec sleep 3600
