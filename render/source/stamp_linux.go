package source

import "syscall"

// stampOf gives the stamp of a file, the zero stamp where there is none. It asks
// without what os.Stat allocates: a render may ask twenty thousand times.
func stampOf(name string) stamp {
	var s syscall.Stat_t
	if syscall.Stat(name, &s) != nil {
		return stamp{}
	}
	return newStamp(&s)
}

// linkStamp is the same for a file that may be a link, which it does not follow.
func linkStamp(name string) stamp {
	var s syscall.Stat_t
	if syscall.Lstat(name, &s) != nil {
		return stamp{}
	}
	return newStamp(&s)
}

// newStamp takes the time of the last change of content or metadata, too, which
// unlike that of modification nobody can set.
func newStamp(s *syscall.Stat_t) stamp { return stamp{s.Size, s.Mtim.Nano(), s.Ctim.Nano()} }
