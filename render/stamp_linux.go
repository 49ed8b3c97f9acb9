package render

import "syscall"

// stampOf gives the stamp of a file, the zero Stamp where there is none. It asks
// without what os.Stat allocates: a render may ask twenty thousand times.
func stampOf(name string) Stamp {
	var s syscall.Stat_t
	if syscall.Stat(name, &s) != nil {
		return Stamp{}
	}
	return stamp(&s)
}

// linkStamp is the same for a file that may be a link, which it does not follow.
func linkStamp(name string) Stamp {
	var s syscall.Stat_t
	if syscall.Lstat(name, &s) != nil {
		return Stamp{}
	}
	return stamp(&s)
}

// stamp takes the time of the last change of content or metadata, too, which
// unlike that of modification nobody can set.
func stamp(s *syscall.Stat_t) Stamp { return Stamp{s.Size, s.Mtim.Nano(), s.Ctim.Nano()} }
