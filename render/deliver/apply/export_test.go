package apply

import "time"

// LeaseFor makes the leases of a connection last for another time.
func (c *Cluster) LeaseFor(d time.Duration) { c.leaseDuration = d }
