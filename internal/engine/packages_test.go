package engine

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// The network limits of the caller's ceiling apply to the machine that installs packages for a run.
func TestPackagesReach(t *testing.T) {
	c, err := policy.ParseCeiling("c.toml",
		[]byte("allowNet = []\nmaxConnections = 3\nmaxUploadBytes = 5\nmaxDownloadBytes = 7\n[[net.rule]]\n"+
			"host = \"pypi.example\"\nmethod = \"GET\"\npath = \"/simple/**\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	x := &Execution{Code: &program.Program{Language: language.OfSystem(policy.Pip)}, Live: &egress.LiveRules{Ceiling: c},
		Rec: &record.Run{}, Image: &image.Image{Runtime: "3.11"}}
	x.Rec.Owner, x.Rec.Via = "alice", record.ViaFleet
	to := x.installTarget()
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: []string{"pypi.example:443"},
		MemoryMB: install.MemoryMB}, to.Caller.Ceiling)
	if err != nil || len(denials) > 0 || to.Caller.Name != "alice" || to.Caller.Via != record.ViaFleet {
		t.Fatalf("%+v %v %v", to.Caller, denials, err)
	}
	if got := fmt.Sprint(granted.AllowNet, granted.AllowHTTP, granted.MaxConnections, granted.MaxUpload,
		granted.MaxDownload); got != "[pypi.example:443] [1: GET pypi.example/simple/**] 3 5 7" {
		t.Error(got)
	}
}
