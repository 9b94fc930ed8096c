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
#include "opal/mca/pmix/pmix.h"
#include "opal/util/argv.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/util/show_help.h"

#if OPAL_MAJOR_VERSION != 4 || OPAL_MINOR_VERSION != 1
#error "this component is for the BTL interface of Open MPI 4.1; docs/open-mpi.md says what else there is"
#endif

/* Defined in Rust, for a cdylib exports no symbols of C. */
extern mca_btl_base_component_t mca_btl_esp_component;

/* The two modules. The first sends; the second has put, get and atomic operations and no send, so that the point-to-point layer leaves
 * it alone (its pipeline of sends is as fast) and one-sided communication finds it. */
enum { ESP_SENDS = 0, ESP_ONESIDED = 1, ESP_MODULES = 2 };
extern mca_btl_base_module_t esp_modules[ESP_MODULES];

/* A peer, for one module. */
struct mca_btl_base_endpoint_t {
    uint32_t rank;
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
    uint64_t rings, max_message, eager, backlog;
    int yield_after; /* looks in vain before the processor is offered to others; 0: never */
    int verbose;
    int loud; /* the user asked for this component by name: say why it does not work */
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
/* 0: there is a transport. Always gives the text for the peers, which belongs to Rust. */
int esp_start(const struct esp_setup *setup, const void **blob, size_t *length);
void esp_stop(void);
/* 0: reachable. */
int esp_add(uint32_t rank, const void *blob, size_t length);
/* 1: gone, 0: kept until esp_shim_sent, OPAL_ERR_*. Without `frag` nothing is kept. */
int esp_send(uint32_t rank, uint8_t tag, const mca_btl_base_segment_t *segments, size_t count, void *frag);
int esp_progress(void);
/* 0: memory can be used by peers under this key. */
int esp_register(void *base, size_t size, int flags, uint64_t *key);
void esp_deregister(uint64_t key);
/* OPAL_SUCCESS: esp_shim_done follows, perhaps before it returns. */
int esp_put(uint32_t rank, const void *local, uint64_t remote, uint64_t key, size_t size, struct esp_done *done);
int esp_get(uint32_t rank, void *local, uint64_t remote, uint64_t key, size_t size, struct esp_done *done);
/* `operation`: of enum mca_btl_base_atomic_op_t, 0: compare and swap. `result` may be NULL. */
int esp_atomic(uint32_t rank, void *result, uint64_t remote, uint64_t key, int operation, int narrow,
               uint64_t operand, uint64_t compare, struct esp_done *done);

/* --- In C, called by Rust --- */
void esp_shim_deliver(uint8_t tag, void *data, size_t length);
void esp_shim_segments(void *frag, const mca_btl_base_segment_t **segments, size_t *count);
void esp_shim_sent(void *frag, uint32_t rank, int status);
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
