package vmm

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	noKVM := errors.New("/dev/kvm does not exist")
	for name, c := range map[string]struct {
		host  Host
		guest Arch
		want  Accel
		good  []Accel
		err   string // part of the error for an impossible request
	}{
		"linux amd64":                {Host{"linux", "amd64", nil}, AMD64, Auto, []Accel{KVM, TCG}, ""},
		"linux amd64, arm64 guest":   {Host{"linux", "amd64", nil}, ARM64, Auto, []Accel{TCG}, ""},
		"linux amd64, no kvm":        {Host{"linux", "amd64", noKVM}, AMD64, Auto, []Accel{TCG}, ""},
		"linux arm64":                {Host{"linux", "arm64", nil}, ARM64, Auto, []Accel{KVM, TCG}, ""},
		"linux arm64, amd64 guest":   {Host{"linux", "arm64", nil}, AMD64, Auto, []Accel{TCG}, ""},
		"darwin arm64":               {Host{"darwin", "arm64", noKVM}, ARM64, Auto, []Accel{HVF, TCG}, ""},
		"darwin arm64, amd64 guest":  {Host{"darwin", "arm64", noKVM}, AMD64, Auto, []Accel{TCG}, ""},
		"darwin amd64":               {Host{"darwin", "amd64", noKVM}, AMD64, Auto, []Accel{HVF, TCG}, ""},
		"darwin amd64, arm64 guest":  {Host{"darwin", "amd64", noKVM}, ARM64, Auto, []Accel{TCG}, ""},
		"kvm where it is":            {Host{"linux", "amd64", nil}, AMD64, KVM, []Accel{KVM}, ""},
		"kvm where it is not":        {Host{"linux", "amd64", noKVM}, AMD64, KVM, nil, "/dev/kvm does not exist"},
		"kvm on darwin":              {Host{"darwin", "arm64", nil}, ARM64, KVM, nil, "this is darwin"},
		"hvf on linux":               {Host{"linux", "amd64", nil}, AMD64, HVF, nil, "this is linux"},
		"hvf for another machine":    {Host{"darwin", "arm64", noKVM}, AMD64, HVF, nil, "the guest is amd64"},
		"tcg is always there":        {Host{"plan9", "mips", noKVM}, AMD64, TCG, []Accel{TCG}, ""},
		"nothing asked for is auto":  {Host{"linux", "amd64", nil}, AMD64, "", []Accel{KVM, TCG}, ""},
		"one that there is not":      {Host{"linux", "amd64", nil}, AMD64, "xen", nil, "unknown accelerator"},
		"windows has neither of two": {Host{"windows", "amd64", noKVM}, AMD64, Auto, []Accel{TCG}, ""},
	} {
		good, bad, err := c.host.Candidates(c.guest, c.want)
		if !slices.Equal(good, c.good) {
			t.Errorf("%s: %v, want %v", name, good, c.good)
		}
		if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: error %v, want %q", name, err, c.err)
		}
		for _, r := range bad {
			if r.Reason == "" || slices.Contains(good, r.Accel) {
				t.Errorf("%s: rejected %+v", name, r)
			}
		}
	}
}

func TestParseAccel(t *testing.T) {
	for in, want := range map[string]Accel{"": Auto, "auto": Auto, "kvm": KVM, "hvf": HVF, "tcg": TCG} {
		if got, err := ParseAccel(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	if _, err := ParseAccel("xen"); err == nil || !strings.Contains(err.Error(), "auto, kvm, hvf or tcg") {
		t.Error(err)
	}
}
