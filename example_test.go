package unitask_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/unitask/unitask"
)

// One run: the result has the code's own exit code and output. An error means that there is no result.
func ExampleRun() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := unitask.Run(ctx, unitask.Request{
		Code:     `console.log("hello", ...process.argv.slice(2)); process.exitCode = 7`,
		Args:     []string{"from", "inside"},
		MemoryMB: 256,
		Timeout:  10 * time.Second,
	}, unitask.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%s with exit code %d\n", result.Stdout, result.Outcome, result.ExitCode)
	// Output:
	// hello from inside
	// exited with exit code 7
}

// A program with many runs keeps one Runtime, and chooses where the streams go.
func ExampleRuntime_Run() {
	rt, err := unitask.Open(unitask.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()
	result, err := rt.Run(context.Background(), unitask.Request{
		Code:    `console.log("before"); for (;;);`,
		Timeout: time.Second,
	}, unitask.IO{Stdout: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.TimedOut, result.ExitCode)
	// Output:
	// before
	// true 124
}
