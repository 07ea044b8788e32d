/*
 * A test guest in ring 0 without a kernel. It uses the machine's devices as no driver would,
 * at random from a seed (the command line, decimal), until it is killed.
 * Multiboot 0.6.96, 32 bits, flat. hammer_test.go compiles and runs it.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__asm__(".text\n"
	".align 4\n"
	".long 0x1BADB002, 0, -0x1BADB002\n"
	".globl _start\n"
	"_start: cli\n"
	"mov $stack + 16384, %esp\n"
	"push %ebx\n"
	"call hammer\n"
	"1: hlt; jmp 1b\n"
	".bss\n"
	"stack: .skip 16384\n"
	".text\n");

static u32 state;

static u32 rnd(void)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

static u32 below(u32 n) { return rnd() % n; }

static void outb(u16 p, u8 v) { __asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(p)); }
static void outw(u16 p, u16 v) { __asm__ volatile("outw %0, %1" : : "a"(v), "Nd"(p)); }
static void outl(u16 p, u32 v) { __asm__ volatile("outl %0, %1" : : "a"(v), "Nd"(p)); }
static u8 inb(u16 p) { u8 v; __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(p)); return v; }
static u16 inw(u16 p) { u16 v; __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(p)); return v; }
static u32 inl(u16 p) { u32 v; __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(p)); return v; }

static void say(const char *s) { while (*s) outb(0x3f8, *s++); }

static void say_number(u32 n)
{
	char text[12];
	int i = 11;
	text[i] = 0;
	do
		text[--i] = '0' + n % 10;
	while (n /= 10);
	say(text + i);
}

/* Ports that end the machine, which is not an attack: the keyboard's reset, 0xcf9, ACPI's. */
static int ends(u32 p) { return p == 0x64 || p == 0x92 || (p >= 0xcf8 && p <= 0xcff) || (p >= 0x4ff && p < 0x508) || (p >= 0x600 && p < 0x610) || (p >= 0x3f8 && p < 0x400); }

static void ports(void)
{
	static const u16 known[] = { 0x20, 0x21, 0xa0, 0xa1, 0x40, 0x41, 0x42, 0x43, 0x60, 0x61, 0x70, 0x71, 0x80, 0x510, 0x511, 0x514, 0x518, 0x51c, 0x4d0, 0x4d1 };
	u32 p = below(4) ? known[below(sizeof known / sizeof *known)] : rnd() & 0xffff;
	if (ends(p))
		return;
	switch (below(6)) {
	case 0: outb(p, rnd()); break;
	case 1: outw(p, rnd()); break;
	case 2: outl(p, rnd()); break;
	case 3: inb(p); break;
	case 4: inw(p); break;
	case 5: inl(p); break;
	}
}

/* The devices of a microvm: its virtio transports, its interrupt controllers. */
#define VIRTIO 0xfeb00000u
#define TRANSPORTS 24
#define STRIDE 0x200

static volatile u32 *slot(u32 i) { return (volatile u32 *)(VIRTIO + i * STRIDE); }

static void memory(void)
{
	static const u32 base[] = { VIRTIO, 0xfec00000u, 0xfec10000u, 0xfee00000u, 0xfea00000u, 0xc0000000u, 0xfffc0000u, 0xa0000u };
	u32 at = base[below(8)] + below(TRANSPORTS * STRIDE);
	if (at >= 0xfea00200u && at < 0xfea00208u) /* sleep and reset */
		return;
	switch (below(6)) {
	case 0: *(volatile u8 *)at = rnd(); break;
	case 1: *(volatile u16 *)at = rnd(); break;
	case 2: *(volatile u32 *)at = rnd(); break;
	case 3: (void)*(volatile u8 *)at; break;
	case 4: (void)*(volatile u16 *)at; break;
	case 5: (void)*(volatile u32 *)at; break;
	}
}

struct desc { u64 addr; u32 len; u16 flags, next; };

static struct desc table[256] __attribute__((aligned(4096)));
static struct desc other[256] __attribute__((aligned(4096)));
static u16 avail[600] __attribute__((aligned(4096)));
static u8 used[8192] __attribute__((aligned(4096)));
static u8 room[65536] __attribute__((aligned(4096)));

/* A valid address, or an invalid one: of a device, of nothing,
 * just below the end of memory, far above it. */
static u64 address(void)
{
	switch (below(10)) {
	case 0: return rnd();
	case 1: return (u64)rnd() << 32 | rnd();
	case 2: return VIRTIO + below(TRANSPORTS * STRIDE);
	case 3: return (u32)table + below(4096);
	case 4: return (64u << 20) - below(64);
	case 5: return ~(u64)0 - below(64);
	default: return (u32)room + below(sizeof room);
	}
}

static u32 length(void)
{
	switch (below(6)) {
	case 0: return 0;
	case 1: return ~0u - below(64);
	case 2: return rnd();
	case 3: return below(64);
	default: return below(sizeof room);
	}
}

static void fill(struct desc *d)
{
	for (u32 i = 0; i < 256; i++) {
		d[i].addr = below(8) ? address() : (u32)(below(2) ? table : other); /* indirect, to itself */
		d[i].len = below(8) ? length() : 16 * below(300);
		d[i].flags = below(4) ? below(8) : rnd();
		d[i].next = below(4) ? below(256) : rnd();
	}
}

/* A legal beginning of a header of virtio-blk or virtio-net, so that some requests go far. */
static void header(void)
{
	u32 *h = (u32 *)room;
	for (u32 i = 0; i < 64; i++)
		h[i] = rnd();
	h[0] = below(16);
	h[2] = below(2) ? below(1 << 16) : rnd();
	h[3] = 0;
}

static void queues(void)
{
	volatile u32 *r = slot(below(TRANSPORTS));
	if (r[0] != 0x74726976 || !r[2]) /* "virt", and a device in it */
		return;
	if (!below(8))
		r[0x70 / 4] = 0;
	r[0x70 / 4] = below(8) ? 1 | 2 : rnd();
	for (u32 i = 0; i < 2; i++) {
		r[0x24 / 4] = i;
		r[0x20 / 4] = below(3) ? (i ? 1 : below(2) ? 0 : rnd()) : rnd();
	}
	r[0x70 / 4] = below(8) ? 1 | 2 | 8 : rnd();
	for (u32 n = below(3) + 1; n; n--) {
		r[0x30 / 4] = below(8) ? below(4) : rnd();
		r[0x38 / 4] = below(4) ? 256 : rnd();
		fill(table);
		fill(other);
		header();
		r[0x80 / 4] = below(8) ? (u32)table : (u32)address();
		r[0x84 / 4] = below(16) ? 0 : rnd();
		r[0x90 / 4] = below(8) ? (u32)avail : (u32)address();
		r[0x94 / 4] = below(16) ? 0 : rnd();
		r[0xa0 / 4] = below(8) ? (u32)used : (u32)address();
		r[0xa4 / 4] = below(16) ? 0 : rnd();
		r[0x44 / 4] = 1;
	}
	r[0x70 / 4] = below(8) ? 1 | 2 | 8 | 4 : rnd();
	for (u32 n = below(16) + 1; n; n--) {
		for (u32 i = 0; i < 258; i++)
			avail[i] = below(8) ? below(256) : rnd();
		avail[0] = below(4);
		avail[1] = below(4) ? avail[1] + below(16) : rnd();
		r[0x50 / 4] = below(8) ? below(3) : rnd();
		if (!below(4)) { /* while the device looks at it */
			struct desc *d = &table[below(256)];
			d->next = rnd();
			d->addr = address();
			d->len = length();
		}
		r[0x64 / 4] = rnd();
		(void)r[(0x100 + 4 * below(64)) / 4];
	}
	if (!below(4))
		r[(0x100 + 4 * below(64)) / 4] = rnd();
}

void hammer(u32 *mbi)
{
	const char *line = (const char *)mbi[4];
	if (mbi[0] & 4)
		while (*line) {
			u32 n = 0, digits = 0;
			for (; *line >= '0' && *line <= '9'; line++, digits++)
				n = n * 10 + *line - '0';
			if (digits)
				state = n;
			else
				line++;
		}
	if (!state)
		state = 1;
	say("hammer ");
	say_number(state);
	say("\n");
	for (u32 round = 1;; round++) {
		for (u32 i = 0; i < 200; i++)
			switch (below(8)) {
			case 0: ports(); break;
			case 1: memory(); break;
			default: queues(); break;
			}
		if (!(round & 63)) {
			say("round ");
			say_number(round);
			say("\n");
		}
	}
}
