package contract

import (
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// Unit is one object on its way through the functions, and all that they may
// touch. A Unit is used for one object after the other; it keeps scratch memory
// between them.
type Unit struct {
	// Object is the object as the functions before left it: with edits that wait
	// to be applied, unless Settle was called.
	Object *krm.Object
	// Before is the object with what an earlier render did to it.
	Before *krm.Object
	// Changes are fields that functions set. They are applied after the last
	// function.
	Changes krm.Changes
	// Findings are about this object.
	Findings []finding.Finding
	// Generated are the documents that belong behind the object. They hold until the next one.
	Generated [][]byte
	// Consumed says that the object was input and leaves the output.
	Consumed bool
	// Expansion are the texts of the objects that it generates.
	Expansion [][]byte

	// Alter changes the settings of a workload before what follows from them is
	// worked out; nil changes nothing. What a setting decides is what differs.
	Alter func(identity.Settings) identity.Settings
	// NoOriginal says that the text is a host's, or was made by this render, so
	// that there is no original to restore.
	NoOriginal bool

	pkg      *Package
	kind     Owned // zero for an object that no function reads
	identity identity.Effective
	settled  krm.Object // what functions after the injection see
	text     []byte     // of it
	composed []byte     // texts of Generated
}

// Start makes the unit ready for its next object, and decides whether that is a
// workload which gets the identity infrastructure. The engine calls it.
func (u *Unit) Start(p *Package, o, before *krm.Object) {
	u.pkg, u.Object, u.Before = p, o, before
	u.kind, _ = p.Kinds.Find(o.APIVersion, o.Kind)
	u.Findings, u.Generated, u.Expansion, u.Consumed = u.Findings[:0], u.Generated[:0], nil, false
	u.identity.ID, u.identity.Injected, u.composed = 0, false, u.composed[:0]
	u.Changes.Reset()
	u.Changes.Version, u.Changes.NoOriginal = p.Version, u.NoOriginal
	if !p.Identity.Concerns(o) {
		return
	}
	pod, ok := o.PodTemplate()
	if ok {
		u.Findings = p.Identity.Identify(&u.identity, o, pod, u.Alter, u.Findings)
		return
	}
	u.identity.ID = p.Index.Find(o)
	if strings.HasSuffix(o.Kind, "List") && o.Get("items").IsList() &&
		o.Contains(p.Prefix()+"/inject") {
		reason := "because it is in a list itself"
		if why, _ := o.Rewritten(); why != "" {
			reason = "because of " + why
		}
		u.Report(finding.Error, "package/list-layout", o.Get("items"),
			fmt.Sprintf("the items of this %s cannot be rendered one by one, %s", o.Kind, reason),
			"write its items as documents of their own")
	}
}

// Finish makes the changes that functions noted, after the last of them. The
// engine calls it.
func (u *Unit) Finish() {
	if finding.Failed(u.Findings) {
		return
	}
	if err := u.Changes.Apply(u.Object); err != nil {
		u.Findings = append(u.Findings, u.Object.LayoutFinding("package/layout", err))
		return
	}
	if why, rewritten := u.Object.Rewritten(); rewritten && u.Changes.Any() {
		u.ReportRewritten("package/rewritten", why)
	}
}

// Report adds a finding about a value of the object.
func (u *Unit) Report(severity finding.Severity, rule string, at krm.Node, message, hint string) {
	u.Findings = append(u.Findings, u.Object.Finding(severity, rule, at, message, hint))
}

// ReportRewritten says that not only the lines that had to change did.
func (u *Unit) ReportRewritten(rule, why string) {
	message := "rewritten in block style"
	if why != "" {
		message += ", because of " + why
	}
	if !u.NoOriginal {
		message += "; `armature uninject` restores the original"
	}
	u.Report(finding.Info, rule, krm.Node{}, message, "")
}

// Settle applies the edits that wait, so that a function sees every container,
// injected ones too. It reports whether that worked; where it did not, a finding
// says why.
func (u *Unit) Settle() bool {
	if u.Object == &u.settled || !u.Object.Edited() {
		return true
	}
	var err error
	if u.text, err = u.settled.Settle(u.Object, u.text); err != nil {
		u.Report(finding.Error, "package/layout", krm.Node{}, err.Error(),
			"write the object in block style")
		return false
	}
	u.Object = &u.settled
	return true
}

// Injected reports whether the object is a workload that gets the identity
// infrastructure, or the tracing settings alone.
func (u *Unit) Injected() bool { return u.identity.Injected }

// Settings returns the effective settings of a workload that is injected.
func (u *Unit) Settings() *identity.Settings { return &u.identity.Settings }

// Inputs returns what they were merged from.
func (u *Unit) Inputs() identity.Inputs {
	return u.pkg.Identity.Inputs(&u.identity, u.Object.Origin.File)
}

// Kind returns the kind of the object, if the function in a row of the table reads
// it.
func (u *Unit) Kind(row int) (kind *Kind, read bool) {
	return u.kind.Kind, u.kind.Kind != nil && u.kind.Row == row
}

// ID is the object in the index, 0 for one that is neither a workload nor may be
// the target of a custom resource.
func (u *Unit) ID() index.ID { return u.identity.ID }
