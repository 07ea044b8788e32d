package vmm

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

const (
	testHead  = "QEVM\x00\x00\x00\x03"
	testAbout = "\x07microvm x-ignore-shared"
	testRAM   = "\x00\x00\x00\x02\x03ram\x00\x00\x00\x00\x00\x00\x00\x04"
	testFoot  = "\x00\x00\x00\x00\x00\x00\x00\x10\x7e\x00\x00\x00\x02"
	testMem   = "\x03mem\x00\x00\x00\x00\x20\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00"
	testBIOS  = "\x07pc.bios\x00\x00\x00\x00\x00\x00\x10\x00" + "\x00\x00\x00\x00\xff\xff\xf0\x00"
	testTimer = "\x04\x00\x00\x00\x00\x05timer\x00\x00\x00\x00\x00\x00\x00\x02"
)

// testMemory is the memory of a machine with a firmware of one page.
func testMemory(page string) string {
	return "\x01" + testRAM + "\x00\x00\x00\x00\x20\x00\x10\x04" + testMem + testBIOS + testFoot +
		"\x02\x00\x00\x00\x02" + "\x00\x00\x00\x00\x00\x00\x00\x08\x07pc.bios" + page + testFoot +
		"\x03\x00\x00\x00\x02" + "\x00\x00\x00\x00\x00\x00\x00\x02\x07pc.bios\x00" + testFoot
}

// A state in Xen's form becomes one of a migration, with the current firmware, and no other state does.
func TestSplice(t *testing.T) {
	// The guest has written data that looks like the end of memory and a device after it.
	planted := testFoot + "\x03\x00\x00\x00\x02" + testFoot + testTimer
	page := planted + strings.Repeat("p", guestPage-len(planted))
	now := strings.Repeat("n", guestPage)
	memory := testHead + testAbout + testMemory(page)
	migrated := memory + testTimer + "old devices" + "\x00\x06\x00\x00\x00\x02{}"
	xen := testHead + testTimer + "new devices\x00"
	sections, err := readMemory([]byte(migrated))
	if err != nil || sections.end != len(memory) || sections.firmware != guestPage {
		t.Fatalf("%+v, not an end at %d: %v", sections, len(memory), err)
	}
	got, err := splice([]byte(migrated), sections, []byte(now), []byte(xen))
	want := memory + "\x02\x00\x00\x00\x02" + "\x00\x00\x00\x00\x00\x00\x00\x08\x07pc.bios" + now + testFoot + testTimer +
		"new devices\x00" + noDescription
	if err != nil || string(got) != want {
		t.Fatalf("%q, not %q: %v", got, want, err)
	}
	if sections, err = readMemory(got); err != nil { // it does not grow
		t.Fatal(err)
	}
	if again, err := splice(got, sections, []byte(now), []byte(xen)); err != nil || !bytes.Equal(again, got) {
		t.Errorf("again: %q %v", again, err)
	}
	for name, devices := range map[string]string{
		"nothing": "", "another version": strings.Replace(xen, "\x03", "\x04", 1), "no device": testHead + "\x00\x00\x00\x00",
	} {
		if got, err := splice([]byte(migrated), sections, nil, []byte(devices)); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	for cut := range len(memory) {
		if sections, err := readMemory([]byte(memory[:cut])); err == nil {
			t.Fatalf("cut at %d: %+v", cut, sections)
		}
	}
}

// hugeFirmware is a machine's memory that claims a firmware of 1<<63 bytes.
const hugeFirmware = "\x01" + testRAM + "\x80\x00\x00\x00\x00\x00\x00\x04" +
	"\x07pc.bios\x80\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\xff\xff\xf0\x00" +
	testFoot + "\x03\x00\x00\x00\x02" + testFoot

// A firmware of an impossible size is an error, before memory is allocated for it.
func TestFirmwareSize(t *testing.T) {
	if m, err := readMemory([]byte(testHead + testAbout + hugeFirmware)); err == nil {
		t.Errorf("%+v", m)
	}
	for _, size := range []int64{math.MinInt64, -guestPage, 1, guestPage - 1, maxFirmware + guestPage,
		math.MaxInt64 &^ (guestPage - 1)} {
		if got, err := (&Machine{}).readFirmware(t.Context(), size); err == nil || got != nil {
			t.Errorf("a firmware of %d bytes: %d, %v", size, len(got), err)
		}
	}
	if got, err := (&Machine{}).readFirmware(t.Context(), 0); err != nil || got != nil {
		t.Errorf("none: %q %v", got, err)
	}
}

// Memory in another form than QEMU's is an error.
func FuzzMemory(f *testing.F) {
	state := testHead + testAbout + testMemory(strings.Repeat("p", guestPage))
	f.Add([]byte(state))
	f.Add([]byte(strings.Replace(state, "x-ignore-shared", "", 1)))
	f.Add([]byte(testHead + testAbout + hugeFirmware))
	f.Add([]byte(testHead + "\x01" + testRAM + "\xff\xff\xff\xff\xff\xff\xff\xf4"))
	f.Fuzz(func(t *testing.T, state []byte) {
		m, err := readMemory(state)
		if err == nil && (m.end > len(state) || len(m.number) != 4 || m.firmware < 0) {
			t.Errorf("%+v of %d bytes", m, len(state))
		}
	})
}
