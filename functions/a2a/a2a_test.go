package a2a

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func payload(t *testing.T, card string) string {
	t.Helper()
	text, err := Payload([]byte(card))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The example of section 8.4.1. Its card is a fragment, so that the test adds the
// interfaces by which 1.0 is known.
func TestDefaults(t *testing.T) {
	const fragment = `{
  "name": "Example Agent",
  "description": "",
  "capabilities": {
    "streaming": false,
    "pushNotifications": false,
    "extensions": []
  },
  "skills": []`
	const want = `{"capabilities":{"pushNotifications":false,"streaming":false},"description":"","name":"Example Agent","skills":[]`
	if got := payload(t,
		fragment+
			`, "supportedInterfaces": [], "signatures": [{"protected": "e30", "signature": "AA"}]}`); got !=
		want+`,"supportedInterfaces":[]}` {
		t.Errorf("the example of 8.4.1 gives %s", got)
	}
	if got := payload(t, fragment+`}`); !strings.Contains(got, `"extensions":[]`) {
		t.Errorf("a card of 0.3 loses a field: %s", got)
	}
	for in, want := range map[string]string{
		`{"supportedInterfaces":[{"url":"u","tenant":""},{"tenant":"a"}],"x-own":"","securitySchemes":{},"securityRequirements":[]}`:                                                                                                     `{"supportedInterfaces":[{"url":"u"},{"tenant":"a"}],"x-own":""}`,
		`{"supportedInterfaces":[],"capabilities":{"extensions":[{"uri":"u","required":false,"description":"","params":{"a":null,"b":""}}]}}`:                                                                                            `{"capabilities":{"extensions":[{"params":{"a":null,"b":""},"uri":"u"}]},"supportedInterfaces":[]}`,
		`{"supportedInterfaces":[],"skills":[{"id":"","tags":[],"examples":[],"inputModes":[],"outputModes":["text"],"securityRequirements":[{"schemes":{"a":{"list":[]}}}]}]}`:                                                          `{"skills":[{"id":"","outputModes":["text"],"securityRequirements":[{"schemes":{"a":{}}}],"tags":[]}],"supportedInterfaces":[]}`,
		`{"supportedInterfaces":[],"securitySchemes":{"o":{"oauth2SecurityScheme":{"description":"","flows":{"authorizationCode":{"pkceRequired":false,"scopes":{}}}}},"k":{"apiKeySecurityScheme":{"location":"","description":"d"}}}}`: `{"securitySchemes":{"k":{"apiKeySecurityScheme":{"description":"d","location":""}},"o":{"oauth2SecurityScheme":{"flows":{"authorizationCode":{"scopes":{}}}}}},"supportedInterfaces":[]}`,
		`{"supportedInterfaces":[],"documentationUrl":"","iconUrl":"","provider":{},"capabilities":{"extendedAgentCard":false}}`:                                                                                                         `{"capabilities":{"extendedAgentCard":false},"documentationUrl":"","iconUrl":"","provider":{},"supportedInterfaces":[]}`,
		`{"supportedInterfaces":[],"html":"<a>&\u2028","n":1.0,"big":1e21}`:                                                                                                                                                              "{\"big\":1e+21,\"html\":\"<a>&\u2028\",\"n\":1,\"supportedInterfaces\":[]}",
	} {
		if diff := cmp.Diff(want, payload(t, in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

// TestNoPayload: ambiguous texts, and texts that are not cards, have no payload.
func TestNoPayload(t *testing.T) {
	for name, card := range map[string]string{
		"two names":   `{"name":"good","name":"evil"}`,
		"two, hidden": `{"skills":[{"id":"a","\u0069d":"b"}]}`,
		"a list":      `[]`,
		"null":        `null`,
		"half a pair": `{"name":"\ud800"}`,
		"a huge card": `{"name":"` + strings.Repeat("a", MaxCard) + `"}`,
		"deep":        strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
	} {
		if got, err := Payload([]byte(card)); err == nil {
			t.Errorf("%s has a payload: %.100s", name, got)
		}
	}
}

// TestChanged: a card that differs in a value for any reader has another payload, or none. A
// signature changes neither the rest of the text nor the payload.
func TestChanged(t *testing.T) {
	for signed, changed := range map[string][]string{
		`{"supportedInterfaces":[],"x-limit":9007199254740992}`: {
			`{"supportedInterfaces":[],"x-limit":9007199254740993}`,
			`{"supportedInterfaces":[],"x-limit":-9007199254740993}`},
		`{"supportedInterfaces":[],"x":{"y":[1000000000000000000]}}`: {
			`{"supportedInterfaces":[],"x":{"y":[1000000000000000001]}}`,
			`{"supportedInterfaces":[],"x":{"y":[100000000000000000000000001]}}`},
		`{"supportedInterfaces":[{"url":"u"}]}`: {
			`{"supportedInterfaces":[{"url":"u","tenant":false}]}`,
			`{"supportedInterfaces":[{"url":"u","tenant":[]}]}`,
			`{"supportedInterfaces":[{"url":"u","tenant":{}}]}`},
		`{"supportedInterfaces":[],"skills":[{"id":"a"}]}`: {
			`{"supportedInterfaces":[],"skills":[{"id":"a","examples":""}]}`,
			`{"supportedInterfaces":[],"skills":[{"id":"a","inputModes":{}}]}`,
			`{"supportedInterfaces":[],"skills":[{"id":"a","outputModes":false}]}`},
		`{"supportedInterfaces":[],"capabilities":{}}`: {
			`{"supportedInterfaces":[],"capabilities":{"extensions":{}}}`,
			`{"supportedInterfaces":[],"capabilities":{"extensions":false}}`},
		`{"supportedInterfaces":[],"name":"a"}`: {
			`{"supportedInterfaces":[],"name":"a","securitySchemes":[]}`,
			`{"supportedInterfaces":[],"name":"a","securityRequirements":{}}`,
			`{"supportedInterfaces":[],"name":"a","securitySchemes":""}`},
		`{"supportedInterfaces":[],"securityRequirements":[{"a":"b"}]}`: {
			`{"supportedInterfaces":[],"securityRequirements":[{"a":"b","schemes":[]}]}`,
			`{"supportedInterfaces":[],"securityRequirements":[{"a":"b","schemes":false}]}`},
	} {
		whole, err := Payload([]byte(signed))
		if err != nil && !strings.Contains(signed, "1000000000000000000") {
			t.Errorf("%s: %v", signed, err)
		}
		for _, c := range changed {
			if got, err := Payload([]byte(c)); err == nil && string(got) == string(whole) {
				t.Errorf("%s has the payload of %s", c, signed)
			}
		}
	}
}

func TestSign(t *testing.T) {
	signatures := []Signature{{Protected: "e30", Signature: "AA"}}
	for in, want := range map[string]string{
		`{"name":"a"}`: `{"name":"a","signatures":[{"protected":"e30","signature":"AA"}]}`,
		`{}`:           `{"signatures":[{"protected":"e30","signature":"AA"}]}`,
		`{"signatures": [{"protected":"x","signature":"y","header":{"a":[1]}}] , "name":"a"}`: `{"signatures": [{"protected":"e30","signature":"AA"}] , "name":"a"}`,
		"{\n  \"name\": \"a\"\n}\n": "{\n  \"name\": \"a\",\n  \"signatures\": [\n    {\n" +
			"      \"protected\": \"e30\",\n      \"signature\": \"AA\"\n    }\n  ]\n}\n",
	} {
		got, err := Sign([]byte(in), signatures)
		if err != nil || string(got) != want {
			t.Errorf("%s gives %s (%v)", in, got, err)
			continue
		}
		if again, err := Sign(got, signatures); err != nil || string(again) != want {
			t.Errorf("signing again gives %s (%v)", again, err)
		}
		if payload(t, in) != payload(t, string(got)) {
			t.Errorf("signing changes the payload of %s", in)
		}
	}
	for _, in := range []string{``, `[]`, `{"a":}`, `{"a":1`} {
		if got, err := Sign([]byte(in), signatures); err == nil {
			t.Errorf("%s is signed: %s", in, got)
		}
	}
}
