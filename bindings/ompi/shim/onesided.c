/* The module for one-sided communication: put, get and atomic operations, which Rust makes of messages. */
#include "shim.h"

static struct mca_btl_base_registration_handle_t *register_mem(mca_btl_base_module_t *module,
                                                               struct mca_btl_base_endpoint_t *endpoint, void *base, size_t size,
                                                               uint32_t flags)
{
    struct mca_btl_base_registration_handle_t *handle = malloc(sizeof *handle);
    if (NULL != handle && 0 != esp_register(base, size, (int) flags, &handle->key)) {
        free(handle);
        handle = NULL;
    }
    return handle;
}

static int deregister_mem(mca_btl_base_module_t *module, struct mca_btl_base_registration_handle_t *handle)
{
    esp_deregister(handle->key);
    free(handle);
    return OPAL_SUCCESS;
}

/* Without a handle: osc/rdma does so in windows of one process, where no memory is registered. No peer takes this key. */
static uint64_t key_of(const struct mca_btl_base_registration_handle_t *handle) { return NULL == handle ? 0 : handle->key; }

static struct esp_done *whom(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local,
                             struct mca_btl_base_registration_handle_t *handle, mca_btl_base_rdma_completion_fn_t call,
                             void *context, void *data)
{
    struct esp_done *done = malloc(sizeof *done);
    if (NULL != done) {
        *done = (struct esp_done) {call, module, endpoint, local, handle, context, data};
    }
    return done;
}

static int begun(int rc, struct esp_done *done)
{
    if (OPAL_SUCCESS != rc) {
        free(done);
    }
    return rc;
}

void esp_shim_done(struct esp_done *done, int status)
{
    struct esp_done d = *done;
    free(done);
    if (NULL != d.call) {
        d.call(d.module, d.endpoint, d.local, d.handle, d.context, d.data, status);
    }
}

static int put(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local, uint64_t remote,
               struct mca_btl_base_registration_handle_t *local_handle, struct mca_btl_base_registration_handle_t *remote_handle,
               size_t size, int flags, int order, mca_btl_base_rdma_completion_fn_t call, void *context, void *data)
{
    struct esp_done *done = whom(module, endpoint, local, local_handle, call, context, data);
    if (NULL == done) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return begun(esp_put(endpoint->way, local, remote, key_of(remote_handle), size, done), done);
}

static int get(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local, uint64_t remote,
               struct mca_btl_base_registration_handle_t *local_handle, struct mca_btl_base_registration_handle_t *remote_handle,
               size_t size, int flags, int order, mca_btl_base_rdma_completion_fn_t call, void *context, void *data)
{
    struct esp_done *done = whom(module, endpoint, local, local_handle, call, context, data);
    if (NULL == done) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return begun(esp_get(endpoint->way, local, remote, key_of(remote_handle), size, done), done);
}

/* `op` 0: compare and swap. */
static int atomic(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local,
                  struct mca_btl_base_registration_handle_t *local_handle, uint64_t remote,
                  struct mca_btl_base_registration_handle_t *remote_handle, int op, uint64_t operand, uint64_t compare, int flags,
                  mca_btl_base_rdma_completion_fn_t call, void *context, void *data)
{
    struct esp_done *done = whom(module, endpoint, local, local_handle, call, context, data);
    if (NULL == done) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    if (flags & MCA_BTL_ATOMIC_FLAG_FLOAT) {
        return begun(OPAL_ERR_NOT_SUPPORTED, done);
    }
    const int narrow = flags & MCA_BTL_ATOMIC_FLAG_32BIT;
    return begun(esp_atomic(endpoint->way, local, remote, key_of(remote_handle), op, narrow, operand, compare, done), done);
}

static int atomic_op(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, uint64_t remote,
                     struct mca_btl_base_registration_handle_t *remote_handle, mca_btl_base_atomic_op_t op, uint64_t operand,
                     int flags, int order, mca_btl_base_rdma_completion_fn_t call, void *context, void *data)
{
    return atomic(module, endpoint, NULL, NULL, remote, remote_handle, (int) op, operand, 0, flags, call, context, data);
}

static int atomic_fop(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local, uint64_t remote,
                      struct mca_btl_base_registration_handle_t *local_handle,
                      struct mca_btl_base_registration_handle_t *remote_handle, mca_btl_base_atomic_op_t op, uint64_t operand,
                      int flags, int order, mca_btl_base_rdma_completion_fn_t call, void *context, void *data)
{
    return atomic(module, endpoint, local, local_handle, remote, remote_handle, (int) op, operand, 0, flags, call, context, data);
}

static int atomic_cswap(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint, void *local, uint64_t remote,
                        struct mca_btl_base_registration_handle_t *local_handle,
                        struct mca_btl_base_registration_handle_t *remote_handle, uint64_t compare, uint64_t value, int flags,
                        int order, mca_btl_base_rdma_completion_fn_t call, void *context, void *data)
{
    return atomic(module, endpoint, local, local_handle, remote, remote_handle, 0, value, compare, flags, call, context, data);
}

void esp_fill_onesided(mca_btl_base_module_t *module)
{
    module->btl_put = put;
    module->btl_get = get;
    module->btl_atomic_op = atomic_op;
    module->btl_atomic_fop = atomic_fop;
    module->btl_atomic_cswap = atomic_cswap;
    module->btl_register_mem = register_mem;
    module->btl_deregister_mem = deregister_mem;
    module->btl_registration_handle_size = sizeof(struct mca_btl_base_registration_handle_t);
    module->btl_put_limit = module->btl_get_limit = SIZE_MAX;
    module->btl_put_alignment = module->btl_get_alignment = 0;
    /* Local memory of a put or get needs no registration. */
    module->btl_put_local_registration_threshold = module->btl_get_local_registration_threshold = SIZE_MAX;
}
