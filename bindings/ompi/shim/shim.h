/*
 * What the two halves of the component know of each other. In C stands what the headers of Open MPI have as macros, inline functions
 * and layouts of this build; everything else is in Rust (src/).
 */
#ifndef ESP_SHIM_H
#define ESP_SHIM_H

#include "opal_config.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "opal/class/opal_bitmap.h"
#include "opal/constants.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/btl/base/btl_base_error.h"
#include "opal/mca/btl/btl.h"
#if OPAL_MAJOR_VERSION == 4
#include "opal/mca/pmix/pmix.h"
#else
#include "opal/mca/pmix/pmix-internal.h"
#endif
#include "opal/util/argv.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/util/show_help.h"

/* What differs between the series. With 5.0 this is compiled (tests/mpi/open-mpi-5) and has not run. */
#if OPAL_MAJOR_VERSION == 4 && OPAL_MINOR_VERSION == 1
#define ESP_EVERYBODY OPAL_PMIX_GLOBAL
#define ESP_JOB_SIZE OPAL_PMIX_JOB_SIZE
#define ESP_UINT32 OPAL_UINT32
#define ESP_BTL_VERSION 310
#elif OPAL_MAJOR_VERSION == 5 && OPAL_MINOR_VERSION == 0
#define ESP_EVERYBODY PMIX_GLOBAL
#define ESP_JOB_SIZE PMIX_JOB_SIZE
#define ESP_UINT32 PMIX_UINT32
#define ESP_BTL_VERSION 330
#else
#error "this component is for the BTL interface of Open MPI 4.1; docs/open-mpi.md says what else there is"
#endif

/* Defined in Rust, for a cdylib exports no symbols of C. */
extern mca_btl_base_component_t mca_btl_esp_component;

/* The modules: one for each interface, which sends; and one that has put, get and atomic operations and no send, so that the
 * point-to-point layer leaves it alone (its pipeline of sends is as fast) and one-sided communication finds it. */
enum { ESP_RAILS = 4, ESP_ONESIDED = ESP_RAILS, ESP_MODULES };
extern mca_btl_base_module_t esp_modules[ESP_MODULES];

/* The longest message. Those that go at once may be longer than the pieces of the others: ob1 sends them as they are, and does not look
 * whether all has been taken. */
static inline size_t esp_longest(const mca_btl_base_module_t *module)
{
    return module->btl_max_send_size > module->btl_eager_limit ? module->btl_max_send_size : module->btl_eager_limit;
}

/* How a peer is reached: see src/rail.rs. */
struct esp_way {
    uint32_t rail, seat;
};

/* A peer, for one module. */
struct mca_btl_base_endpoint_t {
    struct esp_way way;
};

/* Memory that peers may use; they get a copy of it. */
struct mca_btl_base_registration_handle_t {
    uint64_t key;
};

/* Parameters and facts for Rust. */
struct esp_setup {
    uint32_t rank, size;
    const char *job;  /* text that only this job has */
    const char *host; /* name of this node, for people */
    const char *if_include, *if_exclude, *path;
    uint64_t rings, max_message, eager, backlog, coalesce;
    int yield_after; /* looks in vain before the processor is offered to others; 0: never */
    int verbose;
    int loud; /* the user asked for this component by name: say why it does not work */
};

/* An interface in use. */
struct esp_rail {
    char name[16];
    uint32_t speed; /* Mbit/s; 0: not known */
};

/* Whom to tell that a put, get or atomic operation is over. */
struct esp_done {
    mca_btl_base_rdma_completion_fn_t call;
    mca_btl_base_module_t *module;
    struct mca_btl_base_endpoint_t *endpoint;
    void *local;
    struct mca_btl_base_registration_handle_t *handle;
    void *context, *data;
};

/* --- In Rust (src/ffi.rs) --- */
int esp_series_fits(const char *library);
/* How many interfaces there are, with them. Always gives the text for the peers, which belongs to Rust. */
int esp_start(const struct esp_setup *setup, const void **blob, size_t *length, struct esp_rail rails[ESP_RAILS]);
void esp_stop(void);
/* 0: reachable by this interface (-1: by any), and how. */
int esp_add(int rail, uint32_t rank, const void *blob, size_t length, struct esp_way *way);
/* The way of a process to itself, for one-sided communication. */
void esp_own(struct esp_way *way);
/* 1: gone, 0: kept until esp_shim_sent, OPAL_ERR_UNREACH. Without `frag` nothing is kept that is not copied; OPAL_ERR_OUT_OF_RESOURCE then.
 * `bulk`: with `frag`, it is not gone before it has left this process. */
int esp_send(struct esp_way way, uint8_t tag, const mca_btl_base_segment_t *segments, size_t count, void *frag, int bulk);
int esp_progress(void);
/* 0: memory can be used by peers under this key. */
int esp_register(void *base, size_t size, int flags, uint64_t *key);
void esp_deregister(uint64_t key);
/* OPAL_SUCCESS: esp_shim_done follows, perhaps before it returns. */
int esp_put(struct esp_way way, const void *local, uint64_t remote, uint64_t key, size_t size, struct esp_done *done);
int esp_get(struct esp_way way, void *local, uint64_t remote, uint64_t key, size_t size, struct esp_done *done);
/* `operation`: of enum mca_btl_base_atomic_op_t, 0: compare and swap. `result` may be NULL. */
int esp_atomic(struct esp_way way, void *result, uint64_t remote, uint64_t key, int operation, int narrow,
               uint64_t operand, uint64_t compare, struct esp_done *done);

/* --- In C, called by Rust --- */
void esp_shim_deliver(uint32_t rail, uint8_t tag, void *data, size_t length);
void esp_shim_segments(void *frag, const mca_btl_base_segment_t **segments, size_t *count);
void esp_shim_sent(void *frag, int status);
void esp_shim_done(struct esp_done *done, int status);
void esp_shim_failed(const char *words);
/* The text a peer has given for this component; to be freed by esp_shim_forget. */
int esp_shim_blob(uint32_t rank, void **blob, size_t *length);
void esp_shim_forget(void *blob);
void esp_shim_say(const char *words);
/* Shows a topic of help-mpi-btl-esp.txt, once for a job. */
void esp_shim_help(const char *topic);

/* --- In C, among the files --- */
int esp_shim_open(void);
int esp_shim_close(void);
int esp_shim_register(void);
mca_btl_base_module_t **esp_shim_init(int *count, bool progress_threads, bool threads);
int esp_shim_progress(void);
void esp_fill_sends(mca_btl_base_module_t *module);
void esp_fill_onesided(mca_btl_base_module_t *module);

#endif
