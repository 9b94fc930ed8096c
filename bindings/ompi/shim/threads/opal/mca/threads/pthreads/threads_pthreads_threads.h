/* Threads of Open MPI 5 and 6 on POSIX threads, see threads_pthreads_mutex.h. */
#ifndef ESP_THREADS_PTHREADS_THREADS_H
#define ESP_THREADS_PTHREADS_THREADS_H

#include <pthread.h>
#include <sched.h>

#define OPAL_THREAD_YIELD_WHEN_IDLE_DEFAULT false

static inline void opal_thread_yield(void)
{
    sched_yield();
}

#endif
