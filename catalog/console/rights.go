package console

// need is a right that the console itself uses.
type need struct {
	Verbs, Resource string
	verb            string // that stands for all of them
	For             string
	// Without says what people notice if the right is missing.
	Without string
	// Has is whether the console has it where it watches, or in the one namespace that it is for.
	Has       bool
	namespace string
}

// needs returns the rights of the console. Each may be removed: the console then works without it.
func (c *Cluster) needs() []need {
	needs := []need{
		{Verbs: "list, watch", verb: "list", Resource: c.Builds(),
			For: "the list of builds and their pages", Without: "There are no builds."},
		{Verbs: "patch", verb: "patch", Resource: c.Builds(),
			For:     "Retry and Cancel, for callers who may patch the build themselves",
			Without: "Nobody can retry or cancel a build here: the console is read-only."},
		{Verbs: "create", verb: "create", Resource: "events.events.k8s.io",
			For:     "an event for each Retry and Cancel, with the user",
			Without: "Nobody can retry or cancel a build here: the console requires the event."},
		{Verbs: "get, list", verb: "list", Resource: "pipelineruns.tekton.dev",
			For:     "the pipeline of a build, its parameters and earlier runs",
			Without: "Builds show the tasks that their status has."},
		{Verbs: "get, list", verb: "list", Resource: "taskruns.tekton.dev",
			For:     "the state of tasks and steps that run",
			Without: "Builds show the tasks that their status has."},
		{Verbs: "get", verb: "get", Resource: "pods/log",
			For:     "logs of builds, for callers who may read them themselves",
			Without: "Failed builds show the last lines that their status has."},
		{Verbs: "list, watch", verb: "list", Resource: updatesResource,
			For:     "the pull request or commit that pins an image",
			Without: "Builds do not say who pins their image."},
		{Verbs: "list, watch", verb: "list", Resource: configMapsResource,
			For: "the inventories of applied packages", Without: "There are no packages."},
		{Verbs: "list", verb: "list", Resource: "deployments.apps",
			For:     "what runs, and what it was rendered from",
			Without: "Agents and packages do not say which workloads they have."},
		{Verbs: "list", verb: "list", Resource: "pods",
			For:     "which pods run, and why others do not",
			Without: "Agents do not say which pods they have."},
		{Verbs: "create", verb: "create", Resource: "subjectaccessreviews.authorization.k8s.io",
			For: "what each caller may see", Without: "Nobody sees anything."},
	}
	if in := c.builds.BuildNamespace; in != "" {
		needs = append(needs, need{Verbs: "get", verb: "get", Resource: "pods/log", namespace: in,
			For: "logs of runs in " + in +
				", for callers who may get agentbuilds/log of their build",
			Without: "Failed builds of attested modes show the last lines that their status has."})
	}
	return needs
}

// rightsData has the rights of the console itself.
type rightsData struct {
	Namespaces []string
	Needs      []need
}

// rightsPage shows the rights of the console itself, and what is missing without each. Every person
// who is signed in may see it: it names rights, and no object.
func rightsPage(v *Visit) (*Page, error) {
	c := v.Console.Cluster
	if c == nil {
		return &Page{Title: "What the console may do",
			Parts: []Part{{"rights", "rights", rightsData{}}}}, nil
	}
	data := rightsData{Namespaces: c.namespaces, Needs: c.needs()}
	for i, n := range data.Needs {
		has := true
		places := c.places()
		if n.namespace != "" {
			places = []string{n.namespace}
		}
		for _, namespace := range places {
			ok, err := c.own.May(v.Context(), v.User, n.verb, n.Resource, namespace, "")
			if err != nil {
				return nil, err
			}
			has = has && ok
		}
		data.Needs[i].Has = has
	}
	return &Page{Title: "What the console may do", Parts: []Part{{"rights", "rights", data}}}, nil
}
