package lint

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// schema compares objects of built-in kinds with the types of k8s.io/api by the rules of the API
// server's strict decoding.
type schema struct {
	fields map[reflect.Type]map[string]reflect.Type
}

// decoding is the comparison of one object.
type decoding struct {
	schema
	kind   string
	around []reflect.Type // structs around the current value, the outermost first
	report func(at krm.Node, message, hint string)
}

// check reports each value of an object that the API server refuses.
func (s schema) check(o *krm.Object, report func(at krm.Node, message, hint string)) {
	version, err := kubeschema.ParseGroupVersion(o.APIVersion)
	t, known := scheme.Scheme.AllKnownTypes()[version.WithKind(o.Kind)]
	if err != nil || !known || o.Get("sops").Exists() { // sops encrypts values in place
		return
	}
	d := decoding{s, o.APIVersion + " " + o.Kind, nil, report}
	d.value(o.Root(), t)
}

// fieldsOf returns the types of a struct's fields by their names in JSON.
func (s schema) fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, ok := s.fields[t]; ok {
		return known
	}
	fields := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case name == "-":
		case name == "" && f.Anonymous:
			maps.Copy(fields, s.fieldsOf(indirect(f.Type)))
		case name != "":
			fields[name] = f.Type
		}
	}
	s.fields[t] = fields
	return fields
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// value compares a value with its type.
func (d *decoding) value(n krm.Node, t reflect.Type) {
	t = indirect(t)
	switch {
	case n.IsNull():
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()):
		d.special(n, t)
	case t == reflect.TypeFor[[]byte]():
		if d.is(n, n.IsText(), "a string") && !base64Text(n.Text()) {
			d.report(n, "it is not base64",
				"encode it, or write it as it is: under stringData of a Secret, or data of "+
					"a ConfigMap")
		}
	case t.Kind() == reflect.Struct:
		if d.is(n, n.IsMap(), "a mapping") {
			d.object(n, t)
		}
	case t.Kind() == reflect.Map:
		if d.is(n, n.IsMap(), "a mapping") {
			for _, value := range n.Fields() {
				d.value(value, t.Elem())
			}
		}
	case t.Kind() == reflect.Slice:
		if d.is(n, n.IsList(), "a list") {
			for item := range n.Items() {
				d.value(item, t.Elem())
			}
		}
	case t.Kind() == reflect.String:
		if d.is(n, n.IsText(), "a string") {
			d.word(n, t)
		}
	case t.Kind() == reflect.Bool:
		d.is(n, literal(n) == "true" || literal(n) == "false", "true or false")
	case t.Kind() == reflect.Float64:
		_, err := strconv.ParseFloat(literal(n), 64)
		d.is(n, err == nil, "a number")
	case t.Kind() == reflect.Int32 || t.Kind() == reflect.Int64:
		number, err := strconv.ParseInt(literal(n), 10, t.Bits())
		if d.is(n, err == nil, "a whole number") {
			d.port(n, number)
		}
	}
}

// object compares the fields of a mapping with those of a struct.
func (d *decoding) object(n krm.Node, t reflect.Type) {
	fields := d.fieldsOf(t)
	d.around = append(d.around, t)
	for name, value := range n.Fields() {
		if of, known := fields[name]; known {
			d.value(value, of)
		} else if name != "<<" {
			d.report(value, d.kind+" has no such field", d.meant(name, fields))
		}
	}
	d.around = d.around[:len(d.around)-1]
}

// meant returns a hint about an unknown field: a field with a similar name, or with the same name
// at another depth.
func (d *decoding) meant(name string, fields map[string]reflect.Type) string {
	names := slices.Sorted(maps.Keys(fields))
	if near := similar(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	for i := len(d.around) - 2; i > 0; i-- {
		if _, there := d.fieldsOf(d.around[i])[name]; there {
			return "move it out: " + d.around[i].Name() + ", which is around it, has this field"
		}
	}
	for _, inner := range names {
		t := indirect(fields[inner])
		if t.Kind() == reflect.Slice {
			t = indirect(t.Elem())
		}
		if t.Kind() != reflect.Struct {
			continue
		}
		if _, there := d.fieldsOf(t)[name]; there && t != reflect.TypeFor[metav1.ObjectMeta]() {
			return "move it into " + inner + ", which has this field"
		}
	}
	return "remove it: the API server refuses the object, or drops the field"
}

// similar returns the name that differs only in its case, or else the nearest one; "" for none.
func similar(name string, names []string) string {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return n
		}
	}
	return text.Nearest(name, names)
}

// is reports a value of a wrong type. It returns right.
func (d *decoding) is(n krm.Node, right bool, want string) bool {
	if right {
		return true
	}
	is, hint := "a string", "correct the value"
	switch text := n.Text(); {
	case n.IsMap():
		is = "a mapping"
	case n.IsList():
		is = "a list"
	case !n.IsText():
		if is, hint = "a number", "put it in quotes"; literal(n) == "true" || literal(n) == "false" {
			is = "true or false"
		}
		if want != "a string" {
			hint = "correct the value"
		}
	case text == "true" || text == "false" || strings.Trim(text, "0123456789") == "":
		hint = "remove the quotes"
	}
	if n.IsScalar() && want == "a list" {
		hint = "write it as an item of a list: - in front of it"
	}
	d.report(n, is+" where "+want+" should be", hint)
	return false
}

// special compares a value with a type that decodes itself.
func (d *decoding) special(n krm.Node, t reflect.Type) {
	into := reflect.New(t).Interface()
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		if d.is(n, n.IsScalar(), "a quantity") && json.Unmarshal([]byte(literal(n)), into) != nil {
			hint := "write a number with a unit, such as 500m, 2, 512Mi or 1Gi"
			if m := almostQuantity.FindStringSubmatch(n.Text()); m != nil {
				hint = "did you mean " + m[1] + strings.ToUpper(m[2]) + "i?"
			}
			d.report(n, fmt.Sprintf("%q is not a quantity", text.Shown(n.Text())), hint)
		}
	case reflect.TypeFor[intstr.IntOrString]():
		if !d.is(n, n.IsScalar() && (n.IsText() || json.Unmarshal([]byte(literal(n)), into) == nil),
			"a whole number or a string") {
			return
		}
		if n.IsText() {
			d.is(n, strings.Trim(n.Text(), "0123456789") != "" || n.Text() == "", "a whole number")
		} else {
			d.port(n, int64(into.(*intstr.IntOrString).IntValue()))
		}
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](),
		reflect.TypeFor[metav1.Duration]():
		d.is(n, n.IsScalar() && json.Unmarshal([]byte(literal(n)), into) == nil,
			"a "+strings.ToLower(t.Name()))
	}
}

var almostQuantity = regexp.MustCompile(`^([0-9.]+) ?([kKmMgGtT])[iI]?[bB]?$`)

// ports are the fields that contain a port, with the smallest allowed number.
var ports = map[string]int64{"containerPort": 1, "port": 1, "targetPort": 0, "hostPort": 0,
	"nodePort": 0, "healthCheckNodePort": 0, "number": 0, "endPort": 0}

func (d *decoding) port(n krm.Node, number int64) {
	if least, is := ports[n.Key()]; is && (number < least || number > 65535) {
		d.report(n, fmt.Sprintf("%d is not a port", number), "write a number from 1 to 65535")
	}
}

// words are the values of enumerated types.
var words = map[string]string{
	"v1.PullPolicy":                    "Always IfNotPresent Never",
	"v1.RestartPolicy":                 "Always OnFailure Never",
	"v1.Protocol":                      "TCP UDP SCTP",
	"v1.URIScheme":                     "HTTP HTTPS",
	"v1.ServiceType":                   "ClusterIP NodePort LoadBalancer ExternalName",
	"v1.DNSPolicy":                     "ClusterFirst ClusterFirstWithHostNet Default None",
	"v1.PersistentVolumeAccessMode":    "ReadWriteOnce ReadOnlyMany ReadWriteMany ReadWriteOncePod",
	"v1.TaintEffect":                   "NoSchedule PreferNoSchedule NoExecute",
	"v1.UnsatisfiableConstraintAction": "DoNotSchedule ScheduleAnyway",
	"v1.LabelSelectorOperator":         "In NotIn Exists DoesNotExist",
	"v1.DeploymentStrategyType":        "RollingUpdate Recreate",
	"v1.ConcurrencyPolicy":             "Allow Forbid Replace",
	"v1.PathType":                      "Exact Prefix ImplementationSpecific",
	"v1.PolicyType":                    "Ingress Egress",
}

func (d *decoding) word(n krm.Node, t reflect.Type) {
	all, content := strings.Fields(words[t.String()]), n.Text()
	if len(all) == 0 || content == "" || slices.Contains(all, content) {
		return
	}
	hint := "write one of " + strings.Join(all, ", ")
	if near := similar(content, all); near != "" {
		hint = "did you mean " + near + "?"
	}
	d.report(n, fmt.Sprintf("%q is not one of its values", text.Shown(content)), hint)
}

// literal returns a scalar as JSON, decoded as the API server's clients decode YAML; "" for other
// nodes.
func literal(n krm.Node) string {
	if !n.IsScalar() {
		return ""
	}
	if i, ok := n.Int(); ok {
		return strconv.Itoa(i)
	}
	if n.IsText() {
		text, _ := json.Marshal(n.Text())
		return string(text)
	}
	text, _ := yaml.YAMLToJSON([]byte(n.Text()))
	return strings.TrimSpace(string(text))
}

// base64Text reports whether a text is base64, or contains a reference that a tool replaces by
// base64.
func base64Text(text string) bool {
	_, err := base64.StdEncoding.DecodeString(text)
	return err == nil || strings.ContainsAny(text, "<>%@[]:")
}
