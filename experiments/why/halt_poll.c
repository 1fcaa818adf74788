/*
 * Loaded before QEMU (LD_PRELOAD): each VM that it makes polls for at most HALT_POLL_NS before a vCPU sleeps
 * (KVM_CAP_HALT_POLL). So that needs no parameter of the kvm module, which may be read-only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

int ioctl(int descriptor, unsigned long request, ...)
{
    static int (*real)(int, unsigned long, ...);
    va_list arguments;
    void *argument;
    int result;

    va_start(arguments, request);
    argument = va_arg(arguments, void *);
    va_end(arguments);
    if (!real) {
        real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    }
    result = real(descriptor, request, argument);
    if (request == KVM_CREATE_VM && result >= 0) {
        struct kvm_enable_cap polling = { .cap = KVM_CAP_HALT_POLL };

        polling.args[0] = strtoull(getenv("HALT_POLL_NS"), NULL, 10);
        if (real(result, KVM_ENABLE_CAP, &polling) != 0) {
            _exit(99);
        }
    }
    return result;
}
