package policy

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

func TestResolve(t *testing.T) {
	e, denials, err := Resolve(Request{}, nil)
	want := Effective{MemoryMB: 512, CPUs: 1, Timeout: time.Minute, OutputBytes: 16 << 20, MaxProcesses: 512,
		Packages: []PackageRule{},
		AllowNet: []NetRule{}, Ask: []NetRule{}, AllowTCP: []TCPRule{}, AllowHTTP: []HTTPRule{}, Secrets: []SecretRule{},
		Files: []Mount{}, Dirs: []Mount{}, RequireJail: []string{}, Tools: []string{}, MaxConnections: 128,
		MaxUpload: 1 << 30, MaxDownload: 8 << 30, MaxArtifacts: 64 << 20}
	if err != nil || len(denials) != 0 || !reflect.DeepEqual(e, want) {
		t.Errorf("%+v %v %v", e, denials, err)
	}
	for i, v := 0, reflect.ValueOf(e); i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.Slice && f.IsNil() {
			t.Errorf("%s is null in JSON, and not an empty list", v.Type().Field(i).Name)
		}
	}
	for name, c := range map[string]struct {
		req   Request
		field string
	}{
		"too little of a processor":    {Request{CPUs: 0.01}, "cpus"},
		"too many processors":          {Request{CPUs: 65}, "cpus"},
		"no number of processors":      {Request{CPUs: math.NaN()}, "cpus"},
		"kernel":                       {Request{Kernel: "bsd"}, "kernel"},
		"kernel in capitals":           {Request{Kernel: "Linux"}, "kernel"},
		"too little memory":            {Request{MemoryMB: 127}, "memoryMb"},
		"negative memory":              {Request{MemoryMB: -1}, "memoryMb"},
		"too much memory":              {Request{MemoryMB: 1 << 30}, "memoryMb"},
		"no time":                      {Request{Timeout: -time.Microsecond}, "timeoutSeconds"},
		"too much time":                {Request{Timeout: 86401 * time.Second}, "timeoutSeconds"},
		"less time than a millisecond": {Request{Timeout: time.Microsecond}, "timeoutSeconds"},
		"endless time":                 {Request{Timeout: math.MaxInt64}, "timeoutSeconds"},
		"negative output":              {Request{OutputBytes: -1}, "outputBytes"},
		"too much output":              {Request{OutputBytes: 1<<30 + 1}, "outputBytes"},
		"a host that is none":          {Request{AllowNet: []string{"a.com", "b c"}}, "allowNet"},
		"every host":                   {Request{AllowNet: []string{"*"}}, "allowNet"},
		"no port":                      {Request{AllowTCP: []string{"a.com"}}, "allowTcp"},
		"too many hosts":               {Request{AllowNet: make([]string, MaxRules+1)}, "allowNet"},
		"negative processes":           {Request{MaxProcesses: -1}, "maxProcesses"},
		"too many processes":           {Request{MaxProcesses: 2049}, "maxProcesses"},
		"negative connections":         {Request{MaxConnections: -1}, "maxConnections"},
		"negative upload":              {Request{MaxUpload: -1}, "maxUploadBytes"},
		"a secret without a name":      {Request{Secrets: []string{""}}, "secrets"},
		"a secret's strange name":      {Request{Secrets: []string{"A=B"}}, "secrets"},
		"negative download":            {Request{MaxDownload: -1}, "maxDownloadBytes"},
		"negative artifacts":           {Request{MaxArtifacts: -2}, "maxArtifactBytes"},
		"too many artifacts":           {Request{MaxArtifacts: 4<<30 + 1}, "maxArtifactBytes"},
		"too many files":               {Request{Files: make([]Mount, MaxRules+1)}, "files"},
		"too many folders":             {Request{Dirs: make([]Mount, MaxRules+1)}, "dirs"},
	} {
		e, _, err := Resolve(c.req, nil)
		var bad *FieldError
		if !errors.As(err, &bad) || bad.Field != c.field || bad.Reason == "" || !reflect.DeepEqual(e, Effective{}) {
			t.Errorf("%s: %+v %v", name, e, err)
		}
	}
}

// For any request, the grants are within the limits, and resolving them again changes nothing.
func FuzzResolve(f *testing.F) {
	f.Add("linux", 512, int64(time.Minute), int64(100), "*.example.com")
	f.Add("", 0, int64(0), int64(0), "A.example:1")
	f.Fuzz(func(t *testing.T, kernel string, memory int, timeout int64, output int64, host string) {
		e, _, err := Resolve(Request{Kernel: kernel, MemoryMB: memory, Timeout: time.Duration(timeout), OutputBytes: output,
			AllowNet: []string{host}}, nil)
		if err != nil {
			return
		}
		if e.MemoryMB < MinMemoryMB || e.MemoryMB > MaxMemoryMB || e.Timeout < time.Millisecond || e.Timeout > MaxTimeout ||
			e.OutputBytes < 1 || e.OutputBytes > 1<<30 {
			t.Errorf("%+v", e)
		}
		again, _, err := Resolve(Asked(e), nil)
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Errorf("%+v, then %+v %v", e, again, err)
		}
	})
}

// A ceiling adds to the required layers, and removes none.
func TestRequireJail(t *testing.T) {
	ceiling, err := ParseCeiling("c", []byte(`requireJail = ["network", "seccomp"]`))
	if err != nil {
		t.Fatal(err)
	}
	e, denials, err := Resolve(Request{RequireJail: []string{"landlock", "network", "landlock"}}, ceiling)
	if want := []string{"landlock", "network", "seccomp"}; err != nil || len(denials) > 0 ||
		!reflect.DeepEqual(e.RequireJail, want) {
		t.Errorf("%v %v %v, expected %v", e.RequireJail, denials, err, want)
	}
	if _, _, err := Resolve(Request{RequireJail: []string{"moat"}}, nil); err == nil {
		t.Error("a layer that there is not")
	}
	for _, text := range []string{`requireJail = ["moat"]`, `requireJail = "network"`, `requireJail = [1]`} {
		if _, err := ParseCeiling("c", []byte(text)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
	less, err := ParseCeiling("l", []byte(`requireJail = ["network"]`))
	if err != nil {
		t.Fatal(err)
	}
	if beyond := less.Beyond(ceiling); len(beyond) != 1 || beyond[0].String() != "requireJail without seccomp" {
		t.Errorf("%v", beyond)
	}
	if beyond := ceiling.Beyond(less); len(beyond) != 0 {
		t.Errorf("%v", beyond)
	}
}

// A secret must not be bound to a host that only raw TCP reaches: its placeholder would be sent.
func TestBoundByRawTCP(t *testing.T) {
	for _, c := range []struct {
		name    string
		r       Request
		refused bool
	}{
		{"raw TCP alone", Request{Secrets: []string{"KEY@api.example.com"}, AllowTCP: []string{"api.example.com:443"}}, true},
		{"raw TCP, below a domain", Request{Secrets: []string{"KEY@other.example,*.example.com"},
			AllowTCP: []string{"api.example.com:443"}, AllowNet: []string{"other.example"}}, true},
		{"raw TCP on another port beside", Request{Secrets: []string{"KEY@api.example.com"},
			AllowTCP: []string{"api.example.com:5432"}, AllowNet: []string{"api.example.com"}}, false},
		{"a domain beside", Request{Secrets: []string{"KEY@api.example.com"}, AllowTCP: []string{"api.example.com:443"},
			AllowNet: []string{"*.example.com:8443"}}, false},
		{"a question beside", Request{Secrets: []string{"KEY@api.example.com"}, AllowTCP: []string{"api.example.com:443"},
			Ask: []string{"api.example.com"}}, false},
		{"a rule by path", Request{Secrets: []string{"KEY@api.example.com"}, AllowTCP: []string{"api.example.com:443"},
			AllowHTTP: []string{"GET api.example.com/v1/*"}}, false},
		{"every host", Request{Secrets: []string{"KEY@api.example.com"}, AllowTCP: []string{"api.example.com:443"},
			AllowNetAny: true}, false},
		{"another host", Request{Secrets: []string{"KEY@api.example.com"}, AllowTCP: []string{"db.example.com:5432"}}, false},
		{"in the machine", Request{Secrets: []string{"KEY"}, AllowTCP: []string{"api.example.com:443"}}, false},
	} {
		_, _, err := Resolve(c.r, nil)
		if refused := err != nil; refused != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// If a ceiling removes the inspected host, no secret stays with raw TCP alone.
func TestAttackBoundByRawTCP(t *testing.T) {
	for _, c := range []struct {
		name, ceiling string
		r             Request
		want          string
	}{
		{"allowNet", `allowNet = ["other.example"]`, Request{AllowNet: []string{"api.example.com"}}, "refused"},
		{"allowNetAny", `allowNetAny = false`, Request{AllowNetAny: true}, "refused"},
		{"ask", `ask = ["other.example"]`, Request{Ask: []string{"api.example.com"}}, "refused"},
		{"allowNet, and asks for it", "allowNet = [\"other.example\"]\nask = [\"api.example.com\"]",
			Request{AllowNet: []string{"api.example.com"}}, "granted"},
		{"another host", `allowNet = ["api.example.com"]`, Request{AllowNet: []string{"api.example.com", "other.example"}},
			"granted"},
		{"allowTcp, too", "allowNet = [\"other.example\"]\nallowTcp = []", Request{AllowNet: []string{"api.example.com"}},
			"granted"},
		{"the secret, too", "allowNet = [\"other.example\"]\nsecrets = []", Request{AllowNet: []string{"api.example.com"}},
			"granted"},
	} {
		ceiling, err := ParseCeiling("test", []byte(c.ceiling))
		if err != nil {
			t.Fatal(err)
		}
		c.r.Secrets, c.r.AllowTCP = []string{"KEY@api.example.com"}, []string{"api.example.com:443"}
		got := "granted"
		e, _, err := Resolve(c.r, ceiling)
		if field := new(FieldError); errors.As(err, &field) && field.Field == "secrets" {
			got = "refused"
		} else if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a secret beside raw TCP, under a ceiling that takes "+c.name, c.want, got)
		if got == "granted" && e.checkBound() != nil {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
}
