package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// The targets for images' sizes and times (issue 19).
const (
	pythonMegabytes, dataMegabytes = 60, 200
	buildTime                      = 10 * time.Second
	importMegabytes                = 100 // of memory
)

// containers are the images to import, and the limits of the time.
var containers = []struct {
	entries, megabytes int
	target             time.Duration
}{{10_000, 200, 3 * time.Second}, {35_000, 1200, 12 * time.Second}}

func mb(n int) string {
	return fmt.Sprintf("%d MB", n)
}

// images measures the sizes and times of images, in a home that has only the parts.
func (s *suite) images(kernel image.Kernel, only string, _ int) (ok bool, err error) {
	ok = true
	say := func(name, target, is string, ratio float64) {
		fmt.Printf("| %s: %s | %s | %s | | | %.2f | 1.00 |\n", kernel, name, target, is, ratio)
		ok = ok && ratio <= 1
	}
	home, err := s.makeHome()
	if err != nil {
		return false, err
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		return false, err
	}
	defer rt.Close()
	// On a busy machine, a command's processor time says more than its elapsed time.
	spent := func(took, processors time.Duration) string {
		return fmt.Sprintf("%s, of a processor %s", ms(took), ms(processors))
	}
	command := func(args ...string) (took, processors time.Duration, memory int, err error) {
		cmd := exec.CommandContext(s.ctx, s.program, append([]string{"--home", home, "image"}, args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		took, err = timed(cmd.Run)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("image %s: %w: %s", strings.Join(args, " "), err, out.Bytes())
		}
		ps := cmd.ProcessState
		return took, ps.UserTime() + ps.SystemTime(), int(ps.SysUsage().(*syscall.Rusage).Maxrss >> 10), nil
	}
	for _, im := range []struct {
		name      string
		megabytes int
	}{{"node", 0}, {"shell", 0}, {"python", pythonMegabytes}, {"data", dataMegabytes}, {"go", 0}} {
		if !strings.Contains("image "+im.name, only) {
			continue
		}
		took, processors, _, err := command("build", "--kernel", string(kernel), "--image", im.name)
		if err != nil {
			return false, err
		}
		say("image "+im.name+" built", ms(buildTime), spent(took, processors), ratio(took, buildTime))
		of, err := rt.Images().Of(im.name)
		if err != nil {
			return false, err
		}
		built, err := of.Lookup(kernel, image.HostArch())
		if err != nil {
			return false, err
		}
		var st syscall.Stat_t
		if err := syscall.Stat(built.Path(image.DiskFile), &st); err != nil {
			return false, err
		}
		size := int(st.Blocks * 512 / 1e6)
		if im.megabytes > 0 {
			say("disk of image "+im.name, mb(im.megabytes), mb(size), float64(size)/float64(im.megabytes))
		}
	}
	for _, c := range containers {
		name := fmt.Sprintf("container of %d MB, %d entries", c.megabytes, c.entries)
		if !strings.Contains(name, only) {
			continue
		}
		archive := filepath.Join(s.dir, "container.tar")
		if err := writeContainer(archive, c.entries, c.megabytes); err != nil {
			return false, err
		}
		took, processors, memory, err := command("import", archive)
		if err != nil {
			return false, err
		}
		say(name+", imported", ms(c.target), spent(took, processors), ratio(took, c.target))
		say(name+", memory of that", fmt.Sprintf("%d MiB", importMegabytes), fmt.Sprintf("%d MiB", memory),
			float64(memory)/importMegabytes)
		if err := os.Remove(archive); err != nil {
			return false, err
		}
	}
	return ok, nil
}

// makeHome makes a home with the parts only.
func (s *suite) makeHome() (string, error) {
	home := filepath.Join(s.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return "", err
	}
	return home, os.Symlink(filepath.Join(s.home, "vendor"), filepath.Join(home, "vendor"))
}

// counter counts the bytes that are written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// writeContainer writes an image as docker save does, with a number of files of one size, in folders of a hundred.
func writeContainer(name string, entries, megabytes int) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{19})
	files := entries * 100 / 101
	content := make([]byte, megabytes<<20/files)
	layer := func(w *tar.Writer) error {
		for i := range files {
			if i%100 == 0 {
				if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("usr/share/d%d/", i/100), Typeflag: tar.TypeDir,
					Mode: 0o755}); err != nil {
					return err
				}
			}
			_, _ = random.Read(content)
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("usr/share/d%d/f%d", i/100, i), Typeflag: tar.TypeReg,
				Mode: 0o644, Size: int64(len(content))}); err != nil {
				return err
			}
			if _, err := w.Write(content); err != nil {
				return err
			}
		}
		return w.Close()
	}
	// The layer's digest and size come before it.
	sum, size := sha256.New(), new(counter)
	if err := layer(tar.NewWriter(io.MultiWriter(sum, size))); err != nil {
		return err
	}
	random = rand.NewChaCha8([32]byte{19})
	config, err := json.Marshal(map[string]any{"os": "linux", "architecture": image.HostArch(),
		"config": map[string]any{"Cmd": []string{"/bin/sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum.Sum(nil))}}})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"bench:1"},
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out := tar.NewWriter(f)
	for _, part := range []struct {
		name string
		text []byte
	}{{"config.json", config}, {"manifest.json", manifest}} {
		if err := out.WriteHeader(&tar.Header{Name: part.name, Mode: 0o644, Size: int64(len(part.text))}); err != nil {
			return err
		}
		if _, err := out.Write(part.text); err != nil {
			return err
		}
	}
	if err := out.WriteHeader(&tar.Header{Name: "layer.tar", Mode: 0o644, Size: int64(*size)}); err != nil {
		return err
	}
	if err := layer(tar.NewWriter(out)); err != nil {
		return err
	}
	return out.Close()
}
