package machine

// Pid returns the process id of the machine's QEMU.
func (m *Machine) Pid() int { return m.qemu().Pid() }

// AtPauseSteps sets a function that is called at each step of every pause.
func AtPauseSteps(f func(step string)) { pauseStep = f }
