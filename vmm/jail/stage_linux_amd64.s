#include "go_asm.h"
#include "textflag.h"

// The program of a stage: see stage_linux.go. It refers to nothing outside of itself,
// so that its bytes can be copied into a file. R12 is the step, R13 the status socket.
TEXT ·stageCode(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ $const_tableBase, R12
	MOVQ (R12), R13
	ADDQ $const_tableHead, R12

step:
	MOVQ  const_stepCall(R12), AX
	TESTQ AX, AX
	JLT   end
	MOVQ  (const_stepArgs+0)(R12), DI
	MOVQ  (const_stepArgs+8)(R12), SI
	MOVQ  (const_stepArgs+16)(R12), DX
	MOVQ  (const_stepArgs+24)(R12), R10
	MOVQ  (const_stepArgs+32)(R12), R8
	MOVQ  (const_stepArgs+40)(R12), R9
	SYSCALL
	CMPQ  AX, $0xfffffffffffff001
	JCC   failed
	MOVQ  const_stepInto(R12), R14
	TESTQ R14, R14
	JEQ   next
	MOVQ  AX, (R14)

next:
	MOVQ const_stepThen(R12), R12
	JMP  step

failed:
	MOVQ  AX, const_stepResult(R12)
	MOVQ  $1, AX                    // write
	MOVQ  R13, DI
	LEAQ  const_stepResult(R12), SI
	MOVQ  $const_reportSize, DX
	SYSCALL
	MOVQ  const_stepElse(R12), R12
	TESTQ R12, R12
	JNE   step

end:
	MOVQ $231, AX // exit_group
	MOVQ $const_stageExit, DI
	SYSCALL
	UNDEF

// func stageAddress() unsafe.Pointer
TEXT ·stageAddress(SB), NOSPLIT, $0-8
	LEAQ ·stageCode(SB), AX
	MOVQ AX, ret+0(FP)
	RET
