# Boot sectors of guests that are idle but for one timer. Assembled with one of --defsym PIT=1, HPET=1, APIC=1, SLEEP=1 or none,
# and HZ, the interrupts a second; with KICK=1 each interrupt of APIC kicks the virtio-blk device in slot 4. SLEEP sets its timer
# before each halt, as a loop of nanosleep does. Real mode, with the limit of fs removed for the registers in memory.
# Port 0xe9 gets a B when the loop begins; at 0x6000 the interrupts are counted.
    .code16
    .text
start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %ss
    mov $0x7000, %sp
    movl $0, 0x6000
    # fs reaches 4 GiB: its descriptor is kept over the return to real mode.
    lgdtl gdt_register
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    mov $8, %bx
    mov %bx, %fs
    and $0xfe, %al
    mov %eax, %cr0
    # The handlers of the lines 0 and 2 of the PIC, and of the vector of the APIC's timer.
    movw $line, 0x20
    movw $0, 0x22
    movw $apic, 0x100
    movw $0, 0x102
    # Nothing but line 0 is let through.
    mov $0xfe, %al
    out %al, $0x21
    mov $0xff, %al
    out %al, $0xa1
.ifdef PIT
    mov $0x34, %al
    out %al, $0x43
    mov $(1193182 / HZ), %ax
    out %al, $0x40
    mov %ah, %al
    out %al, $0x40
.else
    # The firmware's PIT is stopped: mode 0, no count.
    mov $0x30, %al
    out %al, $0x43
.ifndef HPET
    mov $0xff, %al
    out %al, $0x21
.endif
.endif
.ifdef HPET
    mov $0xfed00000, %ebx
    movl $0, %fs:0x10(%ebx)
    # Timer 0: interrupts, periodic, its accumulator is written next. One tick is 10 ns.
    movl $0x4c, %fs:0x100(%ebx)
    movl $(100000000 / HZ), %fs:0x108(%ebx)
    movl $(100000000 / HZ), %fs:0x108(%ebx)
    # On, in place of the PIT.
    movl $3, %fs:0x10(%ebx)
.endif
.ifdef APIC
    mov $0xfee00000, %ebx
    movl $0x1ff, %fs:0xf0(%ebx)
    # Periodic, vector 0x40, divided by 1: QEMU's bus has 1 GHz.
    movl $0x20040, %fs:0x320(%ebx)
    movl $0xb, %fs:0x3e0(%ebx)
    movl $(1000000000 / HZ), %fs:0x380(%ebx)
.endif
.ifdef SLEEP
    mov $0xfee00000, %ebx
    movl $0x1ff, %fs:0xf0(%ebx)
    # Once, vector 0x40, divided by 1.
    movl $0x40, %fs:0x320(%ebx)
    movl $0xb, %fs:0x3e0(%ebx)
.endif
.ifdef KICK
    # Bus master and ports on, and where its registers are.
    mov $0x80002004, %eax
    call pci
    mov $7, %ax
    out %ax, %dx
    mov $0x80002010, %eax
    call pci
    in %dx, %eax
    and $0xfffc, %ax
    mov %ax, %si
    # Reset, acknowledged, driver; an empty queue at 2 MiB; driver ready.
    lea 18(%si), %dx
    xor %al, %al
    out %al, %dx
    mov $3, %al
    out %al, %dx
    lea 14(%si), %dx
    xor %ax, %ax
    out %ax, %dx
    lea 8(%si), %dx
    mov $0x200, %eax
    out %eax, %dx
    lea 18(%si), %dx
    mov $7, %al
    out %al, %dx
.endif
    mov $'B', %al
    out %al, $0xe9
    sti
again:
.ifdef SLEEP
    # A timer that fires before the halt must still end it.
    cli
    movl $(1000000000 / HZ), %fs:0x380(%ebx)
    sti
.endif
    hlt
    jmp again
.ifdef KICK
pci:
    mov $0xcf8, %dx
    out %eax, %dx
    mov $0xcfc, %dx
    ret
.endif
line:
    incl 0x6000
    push %ax
    mov $0x20, %al
    out %al, $0x20
    pop %ax
    iret
apic:
.ifdef KICK
    lea 16(%si), %dx
    xor %ax, %ax
    out %ax, %dx
.endif
    incl 0x6000
    push %ebx
    mov $0xfee000b0, %ebx
    movl $0, %fs:(%ebx)
    pop %ebx
    iret
    .balign 8
gdt:
    .quad 0
    .quad 0x00cf92000000ffff
gdt_register:
    .word 15
    .long gdt
    .org 510
    .word 0xaa55
