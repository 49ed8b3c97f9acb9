package render

// Stats counts what was done.
type Stats struct {
	Files     int `json:"files"`
	Documents int `json:"documents"`
	// Workloads opted in and were rendered.
	Workloads int `json:"workloads"`
	// Generated is the number of generated objects.
	Generated int `json:"generated"`
	// Rewritten documents went through kyaml.
	Rewritten int `json:"rewritten"`
}

func (s *Stats) add(t Stats) {
	s.Files += t.Files
	s.Documents += t.Documents
	s.Workloads += t.Workloads
	s.Generated += t.Generated
	s.Rewritten += t.Rewritten
}
