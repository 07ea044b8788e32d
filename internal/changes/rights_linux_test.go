package changes

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// aclOf returns an ACL in the form of its extended attribute: the owner's rights, one user's, the group's, the mask and
// the others' (acl(5)).
func aclOf(owner, user, group, mask, other uint16) []byte {
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, owner, ^uint32(0)}, {2, user, 4242}, {4, group, ^uint32(0)}, {16, mask, ^uint32(0)}, {32, other, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.perm)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	return acl
}

// A changed file has exactly the rights of the old one: those of its own ACL, and none of its folder's default ACL.
func TestAttackRights(t *testing.T) {
	p := newPlace(t, map[string]string{"plain": "a", "listed": "a"})
	own := aclOf(6, 6, 0, 6, 0)
	err := errors.Join(os.Chmod(p.at("plain"), 0o664), unix.Setxattr(p.at("listed"), aclName, own, 0),
		unix.Setxattr(p.dir, "system.posix_acl_default", aclOf(6, 6, 4, 6, 4), 0))
	if errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system has no ACLs")
	}
	if err != nil {
		t.Fatal(err)
	}
	set := p.propose(File{Path: "plain", Open: text("A")}, File{Path: "listed", Open: text("A")})
	if _, err := p.Apply(set.ID); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"plain": "", "listed": string(own)} {
		acl := make([]byte, 1024)
		n, err := unix.Getxattr(p.at(name), aclName, acl)
		if err != nil && !errors.Is(err, unix.ENODATA) {
			t.Fatal(err)
		}
		got := string(acl[:max(n, 0)])
		attack.Check(t, "the ACL of a changed file, "+name, want, got)
	}
	if st, err := os.Stat(p.at("plain")); err != nil || st.Mode() != 0o664 {
		t.Errorf("plain has the mode %v, %v", st.Mode(), err)
	}
}
