package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// tasks are programs on frameworks that drive E2B's SDKs. Each ends with an error if its task fails.
//
//go:embed tasks/*.py
var tasks embed.FS

// frameworks are the packages of the tasks, in versions that were tried.
const frameworks = "openai-agents==0.24.0 smolagents[e2b]==1.26.0 langchain-e2b==0.0.6"

// runTasks installs the frameworks from PyPI in a venv, runs the tasks, and prints how they ended.
func runTasks(ctx context.Context, dir, address string) error {
	venv := filepath.Join(dir, "frameworks")
	python := filepath.Join(venv, "bin", "python")
	install := append([]string{"-m", "pip", "install", "--quiet"}, strings.Fields(frameworks)...)
	err := command(ctx, "python3", "-m", "venv", venv).Run()
	if err == nil {
		err = command(ctx, python, install...).Run()
	}
	if err != nil {
		return fmt.Errorf("install the frameworks in a venv: %w", err)
	}
	files, err := tasks.ReadDir("tasks")
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n\n| task | ended | time |\n| --- | --- | --- |\n", strings.ReplaceAll(frameworks, "==", " "))
	for _, f := range files {
		text, err := tasks.ReadFile(path.Join("tasks", f.Name()))
		file, began := filepath.Join(dir, f.Name()), time.Now()
		if err = errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
			return err
		}
		task := command(ctx, python, file)
		task.Env = environment(address)
		ended := "well"
		if err := task.Run(); err != nil {
			ended = "with " + err.Error()
		}
		fmt.Printf("| `%s` | %s | %s |\n", f.Name(), ended, time.Since(began).Round(time.Second))
	}
	return ctx.Err()
}

// environment returns the variables with which E2B's SDKs use a server.
func environment(address string) []string {
	return append(os.Environ(), "E2B_API_URL="+address, "E2B_SANDBOX_URL="+address, "E2B_API_KEY="+key)
}
